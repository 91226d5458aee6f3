/** What the page is given: the form "regard-look-1" that Python writes. T queries, S keys, H heads. */

export interface Picture { name: string; width: number; height: number; src: string }

export interface Tokens { kind: 'tokens'; tokens: string[] }
/** A grid over a picture. Rows are the tokens before it, then window after window; -1 stands nowhere. */
export interface Places { kind: 'places'; picture: number; grid: [number, number]; before: string[]; windows: number[][] | null }
/** Regions of a picture: left, top, right, bottom in shares of its width and height. */
export interface Boxes { kind: 'boxes'; picture: number; before: string[]; boxes: [number, number, number, number][]; names: string[] }
export type Side = Tokens | Places | Boxes;

export interface Coded { coding: 'f4' | 'root-u2'; data: string }
export interface Layer {
  name: string; kind: 'self' | 'cross'; queries: number; keys: number; shape: [number, number, number]; weights?: Coded;
}
export interface Stack { title: string; about: string; layers: number[]; rolls: boolean; flows: boolean }
export type How = 'rollout' | 'flow';
export interface Through { stack: number; how: How; shape: [number, number]; weights?: Coded }
/** Heads switched off, by the name of their layer. */
export type Off = Record<string, number[]>;
export interface Asked { model: number; text: string | null; target: string | null; language: string; off: Off }

export interface Run {
  format: 'regard-look-1'; id: number | null; model: string; title: string; source: string; output: string;
  details: Record<string, string>; scores: Record<string, number>; asked: Asked | null;
  pictures: Picture[]; sides: Side[]; layers: Layer[]; stacks: Stack[]; through: Through[];
  main: {layer: number; head: number | 'mean'};
}

export type Given = {mode: 'file'; runs: Run[]} | {mode: 'live'; runs: number[]};

/** A map: "3.2" is layer 3, head 2; "3.mean" the mean of its heads; "s0.rollout" what flows through stack 0. */
export type Address = string;
export type Head = number | 'mean';

export interface Parts { layer: number; head: Head; stack: number; how: How | null }

export function parts(address: Address): Parts {
  const [first = '', second = ''] = address.split('.');
  if (first.startsWith('s')) return {layer: -1, head: 'mean', stack: Number(first.slice(1)), how: second as How};
  return {layer: Number(first), head: second === 'mean' ? 'mean' : Number(second), stack: -1, how: null};
}

/** The layer whose sides a map has; of what flows through a stack, its first. */
export function layerOf(run: Run, address: Address): Layer {
  const {layer, stack, how} = parts(address);
  return run.layers[how ? run.stacks[stack]!.layers[0]! : layer]!;
}
