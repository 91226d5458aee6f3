/** What a query attends to, laid over the places of a picture. */
import {type Address, parts} from '../form';
import {type Laid, layMean, layRow, standing} from './numbers';
import {free} from './sides';
import type {Source} from './source';
import type {Side} from '../form';

/** A row of a map, or the mean of all places' rows. */
export type Query = {row: number} | {every: true};

export async function lay(source: Source, address: Address, queries: Side, keys: Side, query: Query, signal?: AbortSignal): Promise<Laid> {
  const [T] = source.size(address);
  if ('row' in query) return layRow(await source.row(address, query.row, signal), keys, T, query.row);
  const rows = standing(queries, keys, T).map(async ([row, window]) => {
    return [await source.row(address, row, signal), window] as [Float32Array, number];
  });
  return layMean(await Promise.all(rows), keys);
}

/** The same for the places alone, by the shortest way: a layer's default queries are asked for all heads together. */
export async function layCells(source: Source, address: Address, queries: Side, keys: Side, query: Query, signal?: AbortSignal): Promise<ArrayLike<number>> {
  const {layer, head, how} = parts(address), byDefault = free(queries).length ? 'row' in query && query.row === 0 : 'every' in query;
  if (!how && byDefault && keys.kind === 'places') {
    const base = await source.base(layer, signal);
    if (base) return base[base.length === 1 || head === 'mean' ? 0 : head + 1]!;
  }
  return (await lay(source, address, queries, keys, query, signal)).cells;
}
