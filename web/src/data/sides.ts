/** The two sides of a map: how many rows they have, what these are called, and where in a picture they stand. */
import type {Boxes, Places, Side} from '../form';
import {tokenLabel} from './text';

const LONG = 40;

/** The tokens of a side that stand at no place of a picture. */
export function free(side: Side): string[] {
  return side.kind === 'tokens' ? side.tokens : side.before;
}

export function windowsOf(side: Places): number[][] {
  return side.windows ?? [Array.from({length: side.grid[0] * side.grid[1]}, (_, i) => i)];
}

/** Which window of the keys a query sees. */
export function windowOf(keys: Side, numQueries: number, query: number): number {
  const count = keys.kind === 'places' && keys.windows ? keys.windows.length : 1;
  return Math.floor(query * count / numQueries);
}

export function placeName(side: Places | Boxes, place: number): string {
  if (place < 0) return 'beside the picture';
  if (side.kind === 'boxes') return tokenLabel(side.names[place] ?? `box ${place + 1}`, LONG);
  return `row ${Math.floor(place / side.grid[1]) + 1}, column ${place % side.grid[1] + 1}`;
}

/** Names a row of a side; windows are counted through. */
export function rowName(side: Side, row: number, limit = LONG): string {
  const before = free(side);
  if (row < before.length || side.kind === 'tokens') return tokenLabel(before[row] ?? '', limit);
  return placeName(side, placeOf(side, row));
}

/** The place that a row stands at, -1 for none. */
export function placeOf(side: Places | Boxes, row: number): number {
  const at = row - side.before.length;
  if (at < 0) return -1;
  if (side.kind === 'boxes' || !side.windows) return at;
  const wide = side.windows[0]!.length;
  return side.windows[Math.floor(at / wide)]![at % wide]!;
}

/** Names a key as one query sees it: each window has keys of its own. */
export function keyName(keys: Side, numQueries: number, query: number, key: number, limit = LONG): string {
  if (keys.kind !== 'places' || !keys.windows || keys.windows.length < 2) return rowName(keys, key, limit);
  return placeName(keys, keys.windows[windowOf(keys, numQueries, query)]![key]!);
}

/** The row of each place; places that no window has are left out. */
export function rowsOfPlaces(side: Places | Boxes): Map<number, number> {
  const found = new Map<number, number>();
  if (side.kind === 'boxes') {
    side.boxes.forEach((_, i) => found.set(i, side.before.length + i));
    return found;
  }
  windowsOf(side).forEach((places, g) => places.forEach((place, i) => {
    if (place >= 0) found.set(place, side.before.length + g * places.length + i);
  }));
  return found;
}

/** The place under a point, both in shares of the picture; of boxes the smallest; -1 for none. */
export function placeAt(side: Places | Boxes, y: number, x: number): number {
  if (side.kind === 'places') {
    const [height, width] = side.grid;
    return Math.min(Math.floor(y * height), height - 1) * width + Math.min(Math.floor(x * width), width - 1);
  }
  let best = -1, least = Infinity;
  side.boxes.forEach(([left, top, right, bottom], i) => {
    const area = (right - left) * (bottom - top);
    if (left <= x && x < right && top <= y && y < bottom && area < least) [best, least] = [i, area];
  });
  return best;
}

/** Left, top, right, bottom of a place in shares of the picture. */
export function boxOf(side: Places | Boxes, place: number): [number, number, number, number] {
  if (side.kind === 'boxes') return side.boxes[place]!;
  const [height, width] = side.grid, y = Math.floor(place / width), x = place % width;
  return [x / width, y / height, (x + 1) / width, (y + 1) / height];
}

/** The picture that a map is on, that of its keys first. */
export function pictureOf(queries: Side, keys: Side): number | null {
  if (keys.kind !== 'tokens') return keys.picture;
  return queries.kind === 'tokens' ? null : queries.picture;
}
