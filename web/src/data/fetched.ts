/** Weights that the server keeps: asked for in pieces, kept while there is room, given up when nobody waits any more. */
import {refusal} from '../doing/api';
import {type Address, layerOf, type Run} from '../form';
import {Cache} from './cache';
import {TILE, type Tile} from './numbers';
import type {Weights} from './source';

const BYTES = 96 << 20;

interface Flight { promise: Promise<ArrayBuffer>; waiting: number; controller: AbortController }

export class Fetched implements Weights {
  private readonly cache = new Cache<ArrayBuffer>(BYTES);
  private readonly flights = new Map<string, Flight>();

  constructor(private readonly run: Run) {}

  async row(address: Address, query: number, signal?: AbortSignal): Promise<Float32Array> {
    return floats(await this.get(`row?map=${address}&query=${query}`, signal));
  }

  async tile(address: Address, level: number, y: number, x: number, signal?: AbortSignal): Promise<Tile> {
    const shades = new Uint8Array(await this.get(`tile?map=${address}&level=${level}&y=${y}&x=${x}`, signal));
    const {shape: [, T, S]} = layerOf(this.run, address);
    const side = (count: number, at: number) => Math.min(TILE, Math.ceil(count / 2 ** level) - TILE * at);
    return {height: side(T, y), width: side(S, x), shades};
  }

  async base(layer: number, count: number, signal?: AbortSignal): Promise<Float32Array[]> {
    const all = floats(await this.get(`base?layer=${layer}`, signal)), size = all.length / count;
    return Array.from({length: count}, (_, i) => all.subarray(i * size, (i + 1) * size));
  }

  private get(what: string, signal?: AbortSignal): Promise<ArrayBuffer> {
    const kept = this.cache.get(what);
    if (kept) return Promise.resolve(kept);
    if (signal?.aborted) return Promise.reject(signal.reason);
    const flight = this.flights.get(what) ?? this.start(what);
    flight.waiting++;
    return new Promise((resolve, reject) => {
      signal?.addEventListener('abort', () => {
        reject(signal.reason);
        if (--flight.waiting > 0) return;
        flight.controller.abort();
        this.flights.delete(what);
      }, {once: true});
      flight.promise.then(resolve, reject);
    });
  }

  private start(what: string): Flight {
    const controller = new AbortController();
    const flight: Flight = {promise: this.fetch(what, controller), waiting: 0, controller};
    this.flights.set(what, flight);
    return flight;
  }

  private async fetch(what: string, controller: AbortController): Promise<ArrayBuffer> {
    try {
      const answer = await fetch(`/api/runs/${this.run.id}/${what}`, {signal: controller.signal});
      if (!answer.ok) throw await refusal(answer);
      const bytes = await answer.arrayBuffer();
      this.cache.set(what, bytes, bytes.byteLength);
      return bytes;
    } finally {
      if (this.flights.get(what)?.controller === controller) this.flights.delete(what);
    }
  }
}

function floats(bytes: ArrayBuffer): Float32Array {
  const view = new DataView(bytes);
  const found = new Float32Array(bytes.byteLength / 4);
  for (let i = 0; i < found.length; i++) found[i] = view.getFloat32(4 * i, true);
  return found;
}
