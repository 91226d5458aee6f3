/** What a page that was served can do: run models, switch heads off, go step by step, pin a run to compare. */
import {api, type Input, type Model, type Next, Refused} from './api';
import {Source} from '../data/source';
import type {Off, Run} from '../form';
import {looking, open} from '../state.svelte';

const MOST_STEPS = 400;
const WAIT_MS = 250;

class Doing {
  live = $state(false);
  models = $state.raw<Model[]>([]);
  busy = $state('');
  /** What went wrong, and beside which field that is told. */
  error = $state.raw<{field: string; message: string} | null>(null);
  off = $state.raw<Off>({});
  pinned = $state.raw<Source | null>(null);
  /** The same input with all heads, to compare scores with. */
  whole = $state.raw<Run | null>(null);
  input = $state.raw<Input | null>(null);
  stepping = $state(false);
  soFar = $state.raw<number[]>([]);
  next = $state.raw<Next | null>(null);

  get model(): Model | undefined {
    return this.models[this.input?.model ?? 0];
  }
  get anyOff(): boolean {
    return Object.values(this.off).some(heads => heads.length > 0);
  }
}

export const doing = new Doing();
let working = new AbortController();

/** Does one thing at a time: a new one ends the one before it. */
async function work(name: string, task: (signal: AbortSignal) => Promise<void>): Promise<void> {
  working.abort();
  const controller = working = new AbortController();
  [doing.busy, doing.error] = [name, null];
  try {
    await task(controller.signal);
  } catch (error) {
    if (controller.signal.aborted) return;
    doing.error = {field: error instanceof Refused ? error.field : '', message: error instanceof Error ? error.message : String(error)};
  } finally {
    if (working === controller) doing.busy = '';
  }
}

export function begin(ids: number[]): Promise<void> {
  doing.live = true;
  return work('Loading', async () => {
    const [models, ...runs] = await Promise.all([api.models(), ...ids.map(api.run)]);
    doing.models = models;
    if (!runs.length) return;
    const [first, second] = runs.map(run => new Source(run));
    [doing.input, doing.pinned] = [inputOf(first!.run), second ?? null];
    doing.off = first!.run.asked?.off ?? {};
    doing.whole = doing.anyOff ? null : first!.run;
    open(second ? [first!, second] : [first!]);
  });
}

/** What a run was asked, to be asked again; a picture is the one that the model saw. */
function inputOf({asked, pictures}: Run): Input | null {
  if (!asked) return null;
  const {model, text, target, language} = asked;
  if (text !== null) return {model, text, target, language};
  const seen = pictures[0];
  return seen ? {model, image: seen.src.slice(seen.src.indexOf(',') + 1), name: seen.name} : null;
}

function show(run: Run): void {
  const source = new Source(run), sources = doing.pinned ? [source, doing.pinned] : [source];
  if (looking.sources.length) looking.sources = sources;
  else open(sources);
}

/** Runs an input; with heads off first with all of them, so that the difference is known. */
export function run(input: Input): Promise<void> {
  if (input.model !== doing.input?.model) doing.off = {};
  [doing.input, doing.whole, doing.stepping, doing.next, doing.soFar] = [input, null, false, null, []];
  return work('Running', signal => ask(input, signal));
}

async function ask(input: Input, signal: AbortSignal): Promise<void> {
  if (!doing.whole) {
    doing.whole = await api.add(input, {}, signal);
    if (!doing.anyOff) show(doing.whole);
  } else if (!doing.anyOff) {
    show(doing.whole);
  }
  if (doing.anyOff) show(await api.add(input, doing.off, signal));
}

export function isOff(layer: string, head: number): boolean {
  return doing.off[layer]?.includes(head) ?? false;
}

/** Whether a head of the current model can be switched. */
export function canSwitch(layer: string): boolean {
  return doing.live && Boolean(doing.input) && Boolean(doing.model?.sites.some(site => site.name === layer));
}

export function toggle(layer: string, head: number): void {
  const heads = doing.off[layer] ?? [];
  const now = heads.includes(head) ? heads.filter(one => one !== head) : [...heads, head].sort((a, b) => a - b);
  const rest = Object.entries(doing.off).filter(([name]) => name !== layer);
  switchHeads(Object.fromEntries(now.length ? [...rest, [layer, now]] : rest));
}

export function switchHeads(off: Off): void {
  doing.off = off;
  const {input} = doing;
  if (!input) return;
  void work('Running', async signal => {
    await new Promise(done => setTimeout(done, WAIT_MS));  // several switched one after the other are run once
    signal.throwIfAborted();
    if (doing.stepping) await step(doing.soFar, signal);
    else await ask(input, signal);
  });
}

export function save(name: string, saved: (path: string) => void): Promise<void> {
  return work('Saving', async () => saved((await api.save(doing.input!.model, doing.off, name)).path));
}

export function pin(): void {
  doing.pinned = looking.sources[0]!;
}

export function unpin(): void {
  doing.pinned = null;
  looking.sources = looking.sources.slice(0, 1);
}

// ---------------------------------------------------------------------------------------------------------- step by step

export function startSteps(): void {
  doing.stepping = true;
  void work('Thinking', signal => step([], signal));
}

export function stopSteps(): void {
  [doing.stepping, doing.next, doing.soFar] = [false, null, []];
  void work('Running', signal => ask(doing.input!, signal));
}

export function go(soFar: number[]): void {
  void work('Thinking', signal => step(soFar, signal));
}

async function step(soFar: number[], signal: AbortSignal): Promise<void> {
  const {input} = doing;
  doing.next = await api.next(input!.model, input!.text!, soFar, doing.off, signal);
  doing.soFar = soFar;
  await showSteps(signal);
}

async function showSteps(signal: AbortSignal): Promise<void> {
  const found = await api.add({...doing.input!, target: null, target_ids: doing.soFar}, doing.off, signal);
  show(found);
  const {stacks, layers} = found, layer = layers[stacks[Math.min(looking.stack, stacks.length - 1)]!.layers[0]!]!;
  const side = found.sides[layer.queries]!;
  if (side.kind === 'tokens') [looking.at, looking.ask] = [null, {row: layer.shape[1] - 1}];
}

/** Takes the best each time, until it ends or the model's context does. */
export function goOn(): void {
  void work('Writing', async signal => {
    try {
      for (let i = 0; i < MOST_STEPS && doing.next?.candidates[0]; i++) {
        const soFar = [...doing.soFar, doing.next.candidates[0].token];
        doing.next = await api.next(doing.input!.model, doing.input!.text!, soFar, doing.off, signal);
        doing.soFar = soFar;
      }
    } finally {
      if (!signal.aborted) await showSteps(signal);
    }
  });
}

export function halt(): void {
  void work('Running', showSteps);
}
