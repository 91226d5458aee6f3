/** Weights as numbers: unpacked, averaged, pooled, laid over a picture. Rows are T × S or H × T × S, row by row. */
import type {Coded, Places, Side} from '../form';
import {free, windowOf, windowsOf} from './sides';
import {shade} from './text';

export const TILE = 256;
/** Shades from 0 to 255 of a part of a map. */
export interface Tile { height: number; width: number; shades: Uint8Array }

/** Reads weights: float32, or the squares of 65,536 steps. */
export async function unpack(coded: Coded): Promise<Float32Array> {
  const packed = Uint8Array.from(atob(coded.data), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  const view = new DataView(await new Response(stream).arrayBuffer());
  const wide = coded.coding === 'f4' ? 4 : 2, found = new Float32Array(view.byteLength / wide);
  if (wide === 4) for (let i = 0; i < found.length; i++) found[i] = view.getFloat32(4 * i, true);
  else for (let i = 0; i < found.length; i++) found[i] = (view.getUint16(2 * i, true) / 65535) ** 2;
  return found;
}

/** Averages heads; for each query over those that attend to anything. */
export function meanOfHeads(weights: Float32Array, [heads, T, S]: [number, number, number]): Float32Array {
  const found = new Float32Array(T * S), sums = new Float64Array(S);
  for (let t = 0; t < T; t++) {
    sums.fill(0);
    let attending = 0;
    for (let h = 0; h < heads; h++) {
      const from = (h * T + t) * S;
      let total = 0;
      for (let s = 0; s < S; s++) {
        const w = weights[from + s]!;
        sums[s]! += w;
        total += w;
      }
      if (total > 0.5) attending++;
    }
    for (let s = 0; s < S; s++) found[t * S + s] = sums[s]! / Math.max(attending, 1);
  }
  return found;
}

/** A map's shades, and each time half of it: a cell is the largest of four. Larger weights have larger shades, so pooling may come after. */
export function pyramid(weights: Float32Array, T: number, S: number): Tile[] {
  const shades = new Uint8Array(T * S);
  for (let i = 0; i < shades.length; i++) shades[i] = Math.round(255 * shade(weights[i]!));
  const levels: Tile[] = [{height: T, width: S, shades}];
  for (let last = levels[0]!; Math.max(last.height, last.width) > 1; last = levels.at(-1)!) levels.push(halve(last));
  return levels;
}

function halve({height, width, shades}: Tile): Tile {
  const tall = Math.ceil(height / 2), wide = Math.ceil(width / 2), found = new Uint8Array(tall * wide);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const at = (y >> 1) * wide + (x >> 1), value = shades[y * width + x]!;
      if (value > found[at]!) found[at] = value;
    }
  }
  return {height: tall, width: wide, shades: found};
}

/** Cuts a tile of at most TILE × TILE out of a level. */
export function cut({height, width, shades}: Tile, y: number, x: number): Tile {
  const top = y * TILE, left = x * TILE, tall = Math.min(TILE, height - top), wide = Math.min(TILE, width - left);
  const found = new Uint8Array(tall * wide);
  for (let i = 0; i < tall; i++) {
    const from = (top + i) * width + left;
    found.set(shades.subarray(from, from + wide), i * wide);
  }
  return {height: tall, width: wide, shades: found};
}

/** The level at which a whole map is at most so many cells on a side. */
export function levelFor(T: number, S: number, most: number): number {
  return Math.max(0, Math.ceil(Math.log2(Math.max(T, S) / most)));
}

/** What a query attends to: a number for each place, NaN outside its window; and one for each token that stands nowhere. */
export interface Laid { cells: Float64Array; tokens: Float64Array }

export function numPlaces(keys: Side): number {
  return keys.kind === 'places' ? keys.grid[0] * keys.grid[1] : keys.kind === 'boxes' ? keys.boxes.length : 0;
}

function put(laid: Laid, row: ArrayLike<number>, keys: Side, window: number): void {
  const before = free(keys).length;
  for (let i = 0; i < before; i++) laid.tokens[i] = row[i]!;
  if (keys.kind === 'boxes') keys.boxes.forEach((_, i) => { laid.cells[i] = row[before + i]!; });
  if (keys.kind !== 'places') return;
  windowsOf(keys)[window]!.forEach((place, i) => { if (place >= 0) laid.cells[place] = row[before + i]!; });
}

function nothingLaid(keys: Side): Laid {
  return {cells: new Float64Array(numPlaces(keys)).fill(NaN), tokens: new Float64Array(free(keys).length)};
}

/** Lays one query's row over its keys. */
export function layRow(row: ArrayLike<number>, keys: Side, numQueries: number, query: number): Laid {
  const laid = nothingLaid(keys);
  put(laid, row, keys, windowOf(keys, numQueries, query));
  return laid;
}

/** The queries that stand at a place, with their windows. */
export function standing(queries: Side, keys: Side, numQueries: number): [row: number, window: number][] {
  const found: [number, number][] = [];
  for (let row = free(queries).length; row < numQueries; row++) {
    const wide = queries.kind === 'places' ? (queries as Places).windows?.[0]?.length ?? 0 : 0;
    const at = row - free(queries).length;
    const nowhere = wide > 0 && (queries as Places).windows![Math.floor(at / wide)]![at % wide]! < 0;
    if (!nowhere) found.push([row, windowOf(keys, numQueries, row)]);
  }
  return found;
}

/** Lays the mean of all places' rows over the keys, each window's over its own. */
export function layMean(rows: [row: ArrayLike<number>, window: number][], keys: Side): Laid {
  const laid = nothingLaid(keys), sums = new Map<number, {row: Float64Array; count: number}>();
  for (const [row, window] of rows) {
    const sum = sums.get(window) ?? {row: new Float64Array(row.length), count: 0};
    for (let s = 0; s < row.length; s++) sum.row[s]! += row[s]!;
    sum.count++;
    sums.set(window, sum);
  }
  sums.forEach(({row, count}, window) => put(laid, row.map(value => value / count), keys, window));
  return laid;
}

/** The largest weight and where it is; -1 where nothing is attended to. */
export function largest(values: ArrayLike<number>): number {
  let best = -1;
  for (let i = 0; i < values.length; i++) if (values[i]! > (best < 0 ? 0 : values[best]!)) best = i;
  return best;
}

/** The k largest weights, the strongest first; of equal ones the earlier. */
export function topK(row: ArrayLike<number>, k: number): number[] {
  const order = Array.from({length: row.length}, (_, i) => i).filter(i => row[i]! > 0);
  return order.sort((a, b) => row[b]! - row[a]! || a - b).slice(0, k);
}
