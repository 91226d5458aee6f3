/** The tiles of one map as images: made when they come into view, kept while there is room, given up when they leave it. */
import {Cache} from '../data/cache';
import {levelFor, TILE} from '../data/numbers';
import type {Source} from '../data/source';
import {tileImage} from './images';

const BYTES = 48 << 20;

export class Tiles {
  private readonly images = new Cache<HTMLCanvasElement>(BYTES);
  private readonly coming = new Map<string, AbortController>();
  readonly last: number;

  constructor(
    private readonly source: Source, private readonly address: string, private readonly colour: string,
    readonly T: number, readonly S: number, private readonly arrived: () => void, private readonly failed: (error: unknown) => void,
  ) {
    this.last = levelFor(T, S, TILE);
  }

  /** The tile, or null while it is on its way. */
  at(level: number, y: number, x: number): HTMLCanvasElement | null {
    return this.images.get(`${level}/${y}/${x}`) ?? null;
  }

  /** Asks for the tiles in view and the one that has the whole map; gives up others that have not come yet. */
  want(level: number, top: number, left: number, bottom: number, right: number): void {
    const keys = new Map<string, [number, number, number]>([[`${this.last}/0/0`, [this.last, 0, 0]]]);
    for (let y = top; y <= bottom; y++) for (let x = left; x <= right; x++) keys.set(`${level}/${y}/${x}`, [level, y, x]);
    for (const [key, controller] of this.coming) {
      if (keys.has(key)) continue;
      controller.abort();
      this.coming.delete(key);
    }
    for (const [key, place] of keys) if (!this.images.get(key) && !this.coming.has(key)) void this.load(key, place);
  }

  drop(): void {
    for (const controller of this.coming.values()) controller.abort();
    this.coming.clear();
  }

  private async load(key: string, [level, y, x]: [number, number, number]): Promise<void> {
    const controller = new AbortController();
    this.coming.set(key, controller);
    try {
      const tile = await this.source.tile(this.address, level, y, x, controller.signal);
      this.images.set(key, tileImage(tile, this.colour), 4 * tile.shades.length);
      this.coming.delete(key);
      this.arrived();
    } catch (error) {
      if (!controller.signal.aborted) this.failed(error);
    }
  }
}
