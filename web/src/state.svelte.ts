/** What is looked at: one selection that every view and every run beside it follows. */
import type {Address, Head, How, Layer, Picture, Run, Side, Stack} from './form';
import {boxOf, free, pictureOf, placeAt, placeOf, rowsOfPlaces} from './data/sides';
import type {Query} from './data/laid';
import type {Source} from './data/source';

export type View = 'heads' | 'matrix' | 'lines' | 'picture' | 'details';
/** The query asked about: a row, a point of the picture (whatever grid a layer has), or all places. Null is the map's default. */
export type Ask = {row: number} | {y: number; x: number} | {every: true} | null;
export interface Cell { query: number; key: number }

/** One map of a run, found from the selection. */
export interface Shown {
  run: Run; source: Source; address: Address; stack: number; layer: number; head: Head; how: How | null;
  T: number; S: number; queries: Side; keys: Side; title: string; about: string; picture: Picture | null;
}

class Looking {
  sources = $state.raw<Source[]>([]);
  view = $state<View>('matrix');
  stack = $state(0);
  /** Which layer of the stack. */
  depth = $state(0);
  head = $state<Head>('mean');
  how = $state<How | null>(null);
  /** The query that was chosen. */
  ask = $state.raw<Ask>(null);
  /** The query that the pointer is at, in a picture. */
  hover = $state.raw<Ask>(null);
  /** What the pointer or the keyboard's cursor is at. */
  at = $state.raw<Cell | null>(null);
  /** How many of the strongest are listed and drawn. */
  top = $state(8);
  /** Heads drawn as lines, beside one another; the chosen one alone where it is empty. */
  lines = $state.raw<Head[]>([]);
  shades = $state(true);
  /** What went wrong while something was fetched. */
  trouble = $state('');

  choose(stack: number, depth: number, head: Head, how: How | null = null): void {
    [this.at, this.hover] = [null, null];
    if (stack !== this.stack) this.ask = null;
    [this.stack, this.depth, this.head, this.how] = [stack, depth, head, how];
  }
}

export const looking = new Looking();

const clamp = (value: number, count: number) => Math.min(Math.max(value, 0), count - 1);
const capital = (text: string) => text[0]!.toUpperCase() + text.slice(1);

export function mapTitle(layer: Layer, head: Head): string {
  const kind = layer.kind === 'cross' ? 'cross-attention' : 'self-attention', heads = layer.shape[0];
  return capital(head === 'mean' ? heads > 1 ? `${kind}, mean of ${heads} heads` : kind : `${kind}, head ${head}`);
}

export function flowTitle(stack: Stack, how: How): string {
  return `${capital(how)} through ${stack.layers.length} layers, residual connections included`;
}

/** What flows through a stack that can be shown of a run. */
export function flowsOf(source: Source, stack: number): How[] {
  const {rolls, flows} = source.run.stacks[stack]!, found: How[] = [];
  if (rolls && source.knows(`s${stack}.rollout`) !== 'nothing') found.push('rollout');
  if (flows && source.knows(`s${stack}.flow`) !== 'nothing') found.push('flow');
  return found;
}

/** Finds a map of a run; one that lacks it shows the nearest. */
export function mapOf(source: Source, atStack: number, depth: number, atHead: Head, atHow: How | null): Shown {
  const {run} = source, stack = clamp(atStack, run.stacks.length), {layers, about} = run.stacks[stack]!;
  const index = layers[clamp(depth, layers.length)]!, layer = run.layers[index]!;
  const how = atHow && flowsOf(source, stack).includes(atHow) ? atHow : null;
  const head = atHead === 'mean' || atHead >= layer.shape[0] || layer.shape[0] === 1 ? 'mean' : atHead;
  const of = how ? run.layers[layers[0]!]! : layer;
  const queries = run.sides[of.queries]!, keys = run.sides[of.keys]!, on = pictureOf(queries, keys);
  return {
    run, source, stack, layer: index, head: how ? 'mean' : head, how, queries, keys, T: of.shape[1], S: of.shape[2],
    address: how ? `s${stack}.${how}` : `${index}.${head}`,
    title: how ? flowTitle(run.stacks[stack]!, how) : mapTitle(layer, head),
    about: how ? about : layer.name, picture: on === null ? null : run.pictures[on]!,
  };
}

export function shownOf(source: Source): Shown {
  return mapOf(source, looking.stack, looking.depth, looking.head, looking.how);
}

/** The row that is asked about, or null for the default or all places. */
export function askedRow({queries, T}: Shown, ask: Ask): number | null {
  if (!ask || 'every' in ask) return null;
  if ('row' in ask) return ask.row < T ? ask.row : null;
  return queries.kind === 'tokens' ? null : rowsOfPlaces(queries).get(placeAt(queries, ask.y, ask.x)) ?? null;
}

/** Asks for a row: of a picture for the point in its middle, so that another grid finds its own place there. */
export function askFor({queries}: Shown, row: number): Ask {
  const place = queries.kind === 'tokens' ? -1 : placeOf(queries, row);
  if (queries.kind === 'tokens' || place < 0) return {row};
  const [left, top, right, bottom] = boxOf(queries, place);
  return {y: (top + bottom) / 2, x: (left + right) / 2};
}

/** The default query of a map on a picture: the first that stands at no place, else all places. */
export function restOf({queries}: Shown): Query {
  return free(queries).length ? {row: 0} : {every: true};
}

/** What a view asks of a map: what was chosen, else the map's default. */
export function queryOf(shown: Shown, ask: Ask): Query {
  if (ask && 'every' in ask && shown.queries.kind !== 'tokens') return ask;
  const row = askedRow(shown, ask);
  return row === null ? restOf(shown) : {row};
}

/** Shows runs from the beginning; the first one's main map. */
export function open(sources: Source[]): void {
  const {run} = sources[0]!;
  looking.sources = sources;
  const stack = Math.max(0, run.stacks.findIndex(one => one.layers.includes(run.main.layer)));
  looking.choose(stack, Math.max(0, run.stacks[stack]!.layers.indexOf(run.main.layer)), run.main.head);
  [looking.ask, looking.at, looking.lines] = [null, null, []];
  looking.view = shownOf(sources[0]!).picture ? 'picture' : 'matrix';
}
