/** Where a picture is shaded and outlined, in shares of its width and height. */
import type {Boxes, Places} from '../form';
import {boxOf, windowsOf} from '../data/sides';
import {channels} from './theme.svelte';
import {canvasOf, shares} from './images';

const OUTSIDE = 203;  // 0.7 once the shades' own opacity of 0.88 is taken off

/** Draws one pixel a cell: opacity is the share of the largest weight, paper covers what a query cannot see. */
export function shadesImage(cells: ArrayLike<number>, [height, width]: [number, number], heat: string, paper: string): HTMLCanvasElement {
  const [canvas, onto] = canvasOf(width, height), image = onto.createImageData(width, height), opacity = shares(cells);
  const [inside, outside] = [channels(heat), channels(paper)];
  for (let i = 0; i < height * width; i++) {
    const out = Number.isNaN(cells[i]!);
    image.data.set([...(out ? outside : inside), out ? OUTSIDE : opacity[i]!], 4 * i);
  }
  onto.putImageData(image, 0, 0);
  return canvas;
}

/** The edges of a window as the path of an svg. */
export function windowEdge(side: Places, window: number): string {
  const [height, width] = side.grid, places = new Set(windowsOf(side)[window]!), lines: string[] = [];
  for (const place of places) {
    if (place < 0) continue;
    const y = Math.floor(place / width), x = place % width;
    const inside = (at: number, to: number) => at >= 0 && at < height && to >= 0 && to < width && places.has(at * width + to);
    const line = (y1: number, x1: number, y2: number, x2: number) => lines.push(`M${x1 / width} ${y1 / height}L${x2 / width} ${y2 / height}`);
    if (!inside(y - 1, x)) line(y, x, y, x + 1);
    if (!inside(y + 1, x)) line(y + 1, x, y + 1, x + 1);
    if (!inside(y, x - 1)) line(y, x, y + 1, x);
    if (!inside(y, x + 1)) line(y, x + 1, y + 1, x + 1);
  }
  return lines.join('');
}

export interface Rect { x: number; y: number; width: number; height: number }

export function rectOf(side: Places | Boxes, place: number): Rect {
  const [left, top, right, bottom] = boxOf(side, place);
  return {x: left, y: top, width: right - left, height: bottom - top};
}
