/** A run and its weights, wherever they are: in the page, or at the server that the page came from. */
import {type Address, layerOf, parts, type Run} from '../form';
import {Fetched} from './fetched';
import {Held} from './held';
import type {Tile} from './numbers';

/** Weights of maps by address. What is asked for with a signal may be given up. */
export interface Weights {
  /** Exact weights of one query. */
  row(address: Address, query: number, signal?: AbortSignal): Promise<Float32Array>;
  /** Shades of a part of a map, pooled 2^level × 2^level. */
  tile(address: Address, level: number, y: number, x: number, signal?: AbortSignal): Promise<Tile>;
}

export class Source implements Weights {
  private readonly held: Held;
  private readonly fetched: Fetched | null;

  constructor(readonly run: Run) {
    this.held = new Held(run);
    this.fetched = run.id === null ? null : new Fetched(run);
  }

  /** What can be asked of a map: all of it, single rows (they are computed one by one), or nothing. */
  knows(address: Address): 'all' | 'rows' | 'nothing' {
    if (this.held.has(address)) return 'all';
    if (!this.fetched) return 'nothing';
    return parts(address).how === 'flow' ? 'rows' : 'all';
  }

  /** Queries and keys of a map. */
  size(address: Address): [number, number] {
    const {shape} = layerOf(this.run, address);
    return [shape[1], shape[2]];
  }

  row(address: Address, query: number, signal?: AbortSignal): Promise<Float32Array> {
    return this.of(address).row(address, query, signal);
  }

  tile(address: Address, level: number, y: number, x: number, signal?: AbortSignal): Promise<Tile> {
    return this.of(address).tile(address, level, y, x, signal);
  }

  /** What a layer's heads attend to by default, the mean first, laid out by place; null where it has to be asked row by row. */
  async base(layer: number, signal?: AbortSignal): Promise<Float32Array[] | null> {
    const {shape: [heads]} = this.run.layers[layer]!;
    if (this.held.has(`${layer}.mean`) || !this.fetched) return null;
    return this.fetched.base(layer, heads > 1 ? heads + 1 : 1, signal);
  }

  /** All weights of a layer, of one that the page holds. */
  whole(layer: number): Promise<Float32Array> {
    return this.held.layer(layer);
  }

  private of(address: Address): Weights {
    if (this.held.has(address)) return this.held;
    if (this.fetched) return this.fetched;
    throw new Error(`the page does not hold ${address}`);
  }
}
