/** The server's answers. */
import type {Off, Run} from '../form';

export interface Model {
  id: number; name: string; task: string; takes: 'text' | 'image'; writes: boolean; steps: boolean; languages: string[];
  mask: string | null; sites: {name: string; heads: number}[]; parameters: number; max_tokens: number | null;
}
export interface Candidate { token: number; text: string; probability: number; end: boolean }
export interface Next { text: string; candidates: Candidate[]; ended: boolean }
/** What is asked of a model, but for the heads that are off. */
export interface Input {
  model: number; text?: string; image?: string; name?: string; target?: string | null; target_ids?: number[] | null; language?: string;
}

/** A refusal, in the server's words, and the field that it concerns. */
export class Refused extends Error {
  constructor(message: string, readonly field: string) {
    super(message);
  }
}

export async function refusal(answer: Response): Promise<Refused> {
  try {
    const {message, field} = await answer.json() as {message?: string; field?: string | null};
    if (message) return new Refused(message, field ?? '');
  } catch { /* no JSON: the status says what there is to say */ }
  return new Refused(`the server answered ${answer.status}`, '');
}

async function call<Answer>(path: string, body?: unknown, signal?: AbortSignal): Promise<Answer> {
  const sent = body === undefined ? {} : {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)};
  const answer = await fetch(path, {...sent, ...(signal ? {signal} : {})});
  if (!answer.ok) throw await refusal(answer);
  return await answer.json() as Answer;
}

export const api = {
  models: () => call<Model[]>('/api/models'),
  run: (id: number) => call<Run>(`/api/runs/${id}`),
  add: (input: Input, off: Off, signal: AbortSignal) => call<Run>('/api/runs', {...input, off}, signal),
  next: (model: number, text: string, so_far: number[], off: Off, signal: AbortSignal) => call<Next>('/api/next', {model, text, so_far, off}, signal),
  save: (model: number, off: Off, name: string) => call<{path: string}>('/api/save', {model, off, name}),
};
