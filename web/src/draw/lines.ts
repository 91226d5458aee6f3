/** Tokens in two columns, lines between them as strong as their weights. Sizes are CSS pixels. */
import {FONT} from './matrix';
import type {Line} from './save';
import type {Palette} from './theme.svelte';

export const PITCH = 22;

export interface LinesView {
  width: number; height: number; scroll: number; column: number; T: number; S: number;
  queryName: (t: number) => string; keyName: (s: number) => string; query: number | null; key: number | null;
}

/** The rows that a scrolled column shows. */
export function visibleRows(scroll: number, height: number, count: number): [first: number, last: number] {
  return [Math.max(0, Math.floor(scroll / PITCH)), Math.min(count - 1, Math.floor((scroll + height) / PITCH))];
}

export function drawLines(onto: CanvasRenderingContext2D, view: LinesView, lines: Line[], palette: Palette, ratio: number): void {
  const {width, height, scroll, column, T, S} = view, right = width - column;
  onto.setTransform(ratio, 0, 0, ratio, 0, 0);
  onto.clearRect(0, 0, width, height);
  const y = (at: number) => (at + 0.5) * PITCH - scroll;
  onto.lineWidth = 2;
  for (const {from, to, weight, colour} of lines) {
    onto.globalAlpha = Math.min(weight, 1);
    onto.strokeStyle = colour;
    onto.beginPath();
    onto.moveTo(column, y(from));
    onto.lineTo(right, y(to));
    onto.stroke();
  }
  onto.globalAlpha = 1;
  onto.textBaseline = 'middle';
  const write = (count: number, name: (i: number) => string, chosen: number | null, align: 'right' | 'left', x: number) => {
    onto.textAlign = align;
    const [first, last] = visibleRows(scroll, height, count);
    for (let i = first; i <= last; i++) {
      onto.font = `${i === chosen ? 700 : 400} 13px ${FONT}`;
      onto.fillStyle = i === chosen ? palette.mark : palette.ink;
      onto.fillText(name(i), x, y(i), column - 8);
    }
  };
  write(T, view.queryName, view.query, 'right', column - 7);
  write(S, view.keyName, view.key, 'left', right + 7);
}
