/** Weights that came with the page: unpacked once, on first use. */
import {type Address, layerOf, parts, type Run} from '../form';
import {Cache} from './cache';
import {cut, meanOfHeads, pyramid, type Tile, unpack} from './numbers';
import type {Weights} from './source';

const PYRAMID_BYTES = 64 << 20;

export class Held implements Weights {
  private readonly layers = new Map<number, Promise<Float32Array>>();
  private readonly others = new Map<Address, Promise<Float32Array>>();
  private readonly pyramids = new Cache<Tile[]>(PYRAMID_BYTES);

  constructor(private readonly run: Run) {}

  has(address: Address): boolean {
    const {layer, stack, how} = parts(address);
    if (how) return this.run.through.some(one => one.stack === stack && one.how === how && one.weights);
    return Boolean(this.run.layers[layer]?.weights);
  }

  async row(address: Address, query: number): Promise<Float32Array> {
    const {shape: [, , S]} = layerOf(this.run, address);
    return (await this.map(address)).subarray(query * S, (query + 1) * S);
  }

  async tile(address: Address, level: number, y: number, x: number): Promise<Tile> {
    let levels = this.pyramids.get(address);
    if (!levels) {
      const {shape: [, T, S]} = layerOf(this.run, address);
      levels = pyramid(await this.map(address), T, S);
      this.pyramids.set(address, levels, Math.ceil(T * S * 4 / 3));
    }
    return cut(levels[level]!, y, x);
  }

  layer(index: number): Promise<Float32Array> {
    return kept(this.layers, index, () => unpack(this.run.layers[index]!.weights!));
  }

  private map(address: Address): Promise<Float32Array> {
    const {layer, head, stack, how} = parts(address);
    if (how) {
      return kept(this.others, address, () => {
        return unpack(this.run.through.find(one => one.stack === stack && one.how === how)!.weights!);
      });
    }
    const {shape} = this.run.layers[layer]!, size = shape[1] * shape[2];
    if (head === 'mean') return kept(this.others, address, async () => meanOfHeads(await this.layer(layer), shape));
    return this.layer(layer).then(all => all.subarray(head * size, (head + 1) * size));
  }
}

function kept<Key, Value>(store: Map<Key, Value>, key: Key, make: () => Value): Value {
  let value = store.get(key);
  if (value === undefined) store.set(key, value = make());
  return value;
}
