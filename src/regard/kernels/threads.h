// Threads that share a piece of work.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>

#include "calls.h"

// A product at one row takes some ten microseconds: less than it takes to wake a thread. So threads that wait look for
// work, but let whoever else wants the core have it (a spinning thread may keep from running the very one that it waits
// for); after a while without work they sleep.
class Threads {
  public:
    // Run part(number) for each number below count, side by side where there are threads for them: those of a team of so
    // many, if one is given, else ours. What a part throws, memory that is not to be had, is thrown here once all are done:
    // out of a thread it would end the process.
    template <typename Part>
    static void run(int count, const Part& part, Team team = nullptr, int all = 0) {
        std::atomic<bool> failed{false};
        share_out(count, team, all, [&](int number) {
            try {
                part(number);
            } catch (...) {
                failed.store(true);
            }
        });
        if (failed.load()) throw std::bad_alloc();
    }

  private:
    template <typename Part>
    static void share_out(int count, Team team, int all, const Part& part) {
        if (team && count > 1) {
            // It may give fewer threads than it is asked for. If it is asked for fewer than before it ends the others, and
            // starts them anew for whoever comes next: so all come, and leave where there is nothing for them.
            std::atomic<int> next{0};
            auto take = [&] {
                for (int number; (number = next.fetch_add(1)) < count;) part(number);
            };
            return team([](void* take_) { (*(decltype(take)*)take_)(); }, &take, (unsigned)std::max(all, count), 0);
        }
        std::unique_lock<std::mutex> mine(*turn(), std::defer_lock);
        // Whoever else has the threads now keeps them: this caller does its parts one after the other.
        Threads* threads = count > 1 && mine.try_lock() ? &here() : nullptr;
        int others = threads ? threads->grown(count - 1) : 0;
        Task task{[](const void* part, int number) { (*(const Part*)part)(number); }, &part};
        for (int number = 1; number <= others; ++number) threads->give(number, &task);
        part(0);
        for (int number = others + 1; number < count; ++number) part(number);
        for (int number = 1; number <= others; ++number)
            for (int turns = 0; threads->slots[number - 1]->task.load(std::memory_order_acquire); ++turns) rest(turns);
    }

    struct Task {
        void (*call)(const void*, int);
        const void* part;
    };
    struct alignas(64) Slot {
        std::atomic<const Task*> task{nullptr};
        std::atomic<bool> sleeps{false};
        std::mutex guard;
        std::condition_variable wake;
    };

    std::vector<std::unique_ptr<Slot>> slots;

    static std::mutex*& turn() {  // one for all kinds of parts
        static std::mutex* one = new std::mutex;
        return one;
    }
    // Never destroyed: its threads may outlive whatever ends at a process's end. A forked process has none of them, nor
    // the one whose turn it may have been.
    static Threads*& place() {
        static Threads* threads = nullptr;
        static int forks = pthread_atfork(nullptr, nullptr, [] { place() = nullptr, turn() = new std::mutex; });
        (void)forks;
        return threads;
    }
    static Threads& here() {
        if (!place()) place() = new Threads;
        return *place();
    }

    int grown(int count) {
        try {
            slots.reserve(count);  // a slot whose thread works is not to be lost
            while ((int)slots.size() < count) {
                auto slot = std::make_unique<Slot>();
                std::thread(work, slot.get(), (int)slots.size() + 1).detach();
                slots.push_back(std::move(slot));
            }
        } catch (const std::exception&) {  // no thread is to be had, or no memory for it: its parts are worked off here
        }
        return std::min(count, (int)slots.size());
    }

    void give(int number, const Task* task) {
        Slot& slot = *slots[number - 1];
        slot.task.store(task);
        if (slot.sleeps.load()) {
            std::lock_guard<std::mutex> hold(slot.guard);
            slot.wake.notify_one();
        }
    }

    static void rest(int turns) {
        if (turns >= SPINS) {
            sched_yield();
            return;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    static void work(Slot* slot, int number) {
        using Clock = std::chrono::steady_clock;
        for (;;) {
            const Task* task;
            Clock::time_point since = Clock::now();
            for (int turns = 0; !(task = slot->task.load(std::memory_order_acquire)); ++turns) {
                if (turns < SPINS || Clock::now() - since < AWAKE) {
                    rest(turns);
                    continue;
                }
                std::unique_lock<std::mutex> hold(slot->guard);
                slot->sleeps.store(true);
                slot->wake.wait(hold, [&] { return slot->task.load() != nullptr; });
                slot->sleeps.store(false);
            }
            task->call(task->part, number);
            slot->task.store(nullptr, std::memory_order_release);
        }
    }

    static constexpr int SPINS = 64;  // some microseconds
    static constexpr std::chrono::microseconds AWAKE{1000};
};

// Where a thread's share of some things begins.
inline int64_t share(int64_t things, int64_t number, int64_t threads) { return things * number / threads; }

// Have threads take pieces until none is left: part(piece) for each. Who has which is no matter.
template <typename Part>
void take_all(int64_t pieces, int threads, Team team, const Part& part) {
    std::atomic<int64_t> next{0};
    auto take = [&](int) {
        for (int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) part(piece);
    };
    Threads::run((int)std::max<int64_t>(std::min<int64_t>(threads, pieces), 1), take, team, threads);
}
