/** What a page that was served can do: run models. */
import {Source} from '../data/source';
import {messageOf} from '../data/fetched';
import type {Run} from '../form';
import {fail} from '../loading';
import {open} from '../state.svelte';

class Doing {
  live = $state(false);
}

export const doing = new Doing();

export async function begin(runs: number[]): Promise<void> {
  doing.live = true;
  try {
    const found = await Promise.all(runs.map(id => call<Run>(`/api/runs/${id}`)));
    if (found.length) open(found.map(run => new Source(run)));
  } catch (error) {
    fail(error);
  }
}

/** Asks the server; a refusal becomes an error with its words. */
export async function call<Answer>(path: string, body?: unknown): Promise<Answer> {
  const answer = await fetch(path, body === undefined ? {} : {
    method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(await messageOf(answer));
  return await answer.json() as Answer;
}
