/** What effects wait for. */
import {looking} from './state.svelte';

/** Starts what an effect asks for, and forgets it when the effect runs again. */
export function latest<Value>(start: (signal: AbortSignal) => Promise<Value>, done: (value: Value) => void): () => void {
  const controller = new AbortController();
  start(controller.signal).then(
    value => { if (!controller.signal.aborted) done(value); },
    error => { if (!controller.signal.aborted) fail(error); },
  );
  return () => controller.abort();
}

export function fail(error: unknown): void {
  looking.trouble = error instanceof Error ? error.message : String(error);
}

const watched = new Map<Element, (seen: boolean) => void>();
const observer = new IntersectionObserver(entries => {
  for (const entry of entries) watched.get(entry.target)?.(entry.isIntersecting);
}, {rootMargin: '120px'});

/** Tells whether an element is in view, or nearly. */
export function whenSeen(told: (seen: boolean) => void): (element: Element) => () => void {
  return element => {
    watched.set(element, told);
    observer.observe(element);
    return () => {
      observer.unobserve(element);
      watched.delete(element);
    };
  };
}
