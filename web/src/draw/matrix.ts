/** A map as a matrix on a canvas: where its cells are, how it is moved, and how it is drawn. Sizes are CSS pixels. */
import {TILE} from '../data/numbers';
import type {Palette} from './theme.svelte';
import type {Tiles} from './tiles';

export const FONT = '-apple-system, "Segoe UI", Roboto, "Noto Sans", "Helvetica Neue", Arial, "Liberation Sans", sans-serif';
const MOST_PX = 48;
const SHORT_SIDE_PX = 160;
const NARROW_PX = 10;
const LABEL_PX = 14;

/** Width of a cell, and the map's upper left corner from that of the plot. */
export interface Place { cell: number; x: number; y: number }
export interface Frame { width: number; height: number; left: number; top: number; right: number; turn: 0 | 45 | 90 }
export interface Labels { queries: (t: number) => string; keys: (s: number) => string }

/** Cells of a map of so many tokens are legible, not larger than needed. */
function comfortable(tokens: number): number {
  for (const [limit, cell] of [[8, 40], [12, 34], [18, 27], [26, 22], [40, 17]] as const) if (tokens <= limit) return cell;
  return 14;
}

/** The cell at which a map fits; of a long narrow one, whose cells would be lost, the long side may reach out. */
export function fitCell(T: number, S: number, width: number, height: number): number {
  const whole = Math.min(width / S, height / T), narrow = Math.min(SHORT_SIDE_PX / Math.min(T, S), NARROW_PX, Math.max(width / S, height / T));
  return Math.min(comfortable(Math.max(T, S)), Math.max(whole, narrow));
}

export function limitsOf(T: number, S: number, width: number, height: number): [least: number, most: number] {
  return [Math.min(fitCell(T, S, width, height), width / S, height / T), MOST_PX];
}

/** Keeps a map from leaving its plot. */
export function within({cell, x, y}: Place, T: number, S: number, width: number, height: number): Place {
  const hold = (at: number, size: number, room: number) => Math.min(0, Math.max(at, room - size));
  return {cell, x: hold(x, S * cell, width), y: hold(y, T * cell, height)};
}

/** Enlarges around a point of the plot. */
export function zoomed(place: Place, factor: number, atX: number, atY: number, [least, most]: [number, number]): Place {
  const cell = Math.min(Math.max(place.cell * factor, least), most), grown = cell / place.cell;
  return {cell, x: atX - (atX - place.x) * grown, y: atY - (atY - place.y) * grown};
}

/** How wide the longest names are, and of the keys the third longest: letters stay upright though an end mark does not fit. */
export interface Widths { query: number; key: number; third: number }

/** Makes room for labels: upright where they fit, else slanted, where cells are small at right angles. */
export function frameOf(width: number, cell: number, {query, key, third}: Widths): Frame {
  const turn = third <= cell - 4 ? 0 : turned(cell), slanted = key > cell - 4 && turned(cell) === 45;
  const tall = slanted ? key * 0.71 + 10 : key > cell - 4 ? key : 14;
  const left = Math.min(query + 12, width * 0.34), right = slanted ? Math.min(key * 0.71, 90) : 0;
  return {width, height: 0, left: Math.ceil(left), top: Math.ceil(Math.min(tall, 132) + 10), right, turn};
}

function turned(cell: number): 45 | 90 {
  return cell >= 18 ? 45 : 90;
}

/** The pyramid's level whose cells are a pixel or larger. */
export function levelAt(cell: number, ratio: number, last: number): number {
  return Math.min(Math.max(0, Math.ceil(-Math.log2(cell * ratio))), last);
}

/** The tiles that a plot shows. */
export function inView({cell, x, y}: Place, level: number, T: number, S: number, width: number, height: number): [number, number, number, number] {
  const size = cell * TILE * 2 ** level, end = (count: number) => Math.ceil(count / 2 ** level / TILE) - 1;
  const last = (at: number, room: number, count: number) => Math.min(Math.floor((room - at) / size), end(count));
  return [Math.floor(-y / size), Math.floor(-x / size), last(y, height, T), last(x, width, S)];
}

export interface Marks { row: number | null; column: number | null; kept: number | null }

/** Draws the plot, then what stands beside it. */
export function drawMatrix(
  onto: CanvasRenderingContext2D, frame: Frame, place: Place, tiles: Tiles, labels: Labels, marks: Marks, palette: Palette, ratio: number,
): void {
  const {T, S} = tiles, {cell, x, y} = place, width = frame.width - frame.left - frame.right, height = frame.height - frame.top;
  onto.setTransform(ratio, 0, 0, ratio, 0, 0);
  onto.clearRect(0, 0, frame.width, frame.height);
  onto.save();
  onto.translate(frame.left, frame.top);
  onto.beginPath();
  onto.rect(0, 0, width, height);
  onto.clip();
  onto.fillStyle = palette.ground;
  onto.fillRect(x, y, S * cell, T * cell);
  onto.imageSmoothingEnabled = false;
  drawTiles(onto, place, tiles, width, height, ratio);
  if (cell >= 8) drawGaps(onto, place, T, S, width, height, palette.paper);
  drawMarks(onto, place, T, S, marks, palette);
  onto.restore();
  drawLabels(onto, frame, place, T, S, labels, marks, palette);
}

function drawTiles(onto: CanvasRenderingContext2D, {cell, x, y}: Place, tiles: Tiles, width: number, height: number, ratio: number): void {
  const {T, S, last} = tiles, level = levelAt(cell, ratio, last), size = cell * 2 ** level, whole = tiles.at(last, 0, 0);
  const [top, left, bottom, right] = inView({cell, x, y}, level, T, S, width, height);
  for (let i = top; i <= bottom; i++) {
    for (let j = left; j <= right; j++) {
      const image = tiles.at(level, i, j), atX = x + j * TILE * size, atY = y + i * TILE * size;
      if (image) {
        onto.drawImage(image, atX, atY, image.width * size, image.height * size);
      } else if (whole) {  // until it comes, the same part of the whole map, coarse
        const scale = 2 ** (last - level), wide = Math.min(TILE / scale, whole.width - j * TILE / scale), tall = Math.min(TILE / scale, whole.height - i * TILE / scale);
        if (wide > 0 && tall > 0) onto.drawImage(whole, j * TILE / scale, i * TILE / scale, wide, tall, atX, atY, wide * scale * size, tall * scale * size);
      }
    }
  }
}

function drawGaps(onto: CanvasRenderingContext2D, {cell, x, y}: Place, T: number, S: number, width: number, height: number, paper: string): void {
  onto.fillStyle = paper;
  for (let t = Math.max(0, Math.floor(-y / cell)); t <= T && y + t * cell <= height + 1; t++) onto.fillRect(x, y + t * cell - 0.5, S * cell, 1);
  for (let s = Math.max(0, Math.floor(-x / cell)); s <= S && x + s * cell <= width + 1; s++) onto.fillRect(x + s * cell - 0.5, y, 1, T * cell);
}

function drawMarks(onto: CanvasRenderingContext2D, {cell, x, y}: Place, T: number, S: number, {row, column, kept}: Marks, palette: Palette): void {
  onto.strokeStyle = palette.mark;
  const size = Math.max(cell, 3), off = (size - cell) / 2;
  if (kept !== null) {
    onto.lineWidth = 2;
    onto.strokeRect(x, y + kept * cell - off, S * cell, size);
  }
  onto.lineWidth = 1;
  onto.globalAlpha = 0.55;
  if (row !== null) onto.strokeRect(x - 1, y + row * cell - off, S * cell + 2, size);
  if (column !== null) onto.strokeRect(x + column * cell - off, y - 1, size, T * cell + 2);
  onto.globalAlpha = 1;
  if (row === null || column === null) return;
  onto.lineWidth = 2;
  onto.strokeRect(x + column * cell - off, y + row * cell - off, size, size);
}

function drawLabels(onto: CanvasRenderingContext2D, frame: Frame, {cell, x, y}: Place, T: number, S: number, labels: Labels, marks: Marks, palette: Palette): void {
  const step = Math.max(1, Math.ceil(LABEL_PX / cell)), size = cell >= 27 ? 14 : cell >= 17 ? 12 : 11;
  const shown = (count: number, at: number, room: number, marked: number | null) => {
    const found: number[] = [];
    for (let i = Math.max(0, Math.floor(-at / cell / step)) * step; i < count && at + i * cell < room; i += step) {
      if (at + (i + 0.5) * cell >= 0 && (marked === null || i === marked || Math.abs(i - marked) * cell >= LABEL_PX)) found.push(i);
    }
    if (marked !== null && marked < count && !found.includes(marked) && at + marked * cell > -cell && at + marked * cell < room) found.push(marked);
    return found;
  };
  onto.textBaseline = 'middle';
  const face = (bold: boolean) => {
    onto.font = `${bold ? 700 : 400} ${size}px ${FONT}`;
    onto.fillStyle = bold ? palette.mark : palette.ink;
  };
  onto.save();
  onto.beginPath();
  onto.rect(0, frame.top - 7, frame.left, frame.height - frame.top + 7);
  onto.clip();
  onto.textAlign = 'right';
  const queryMark = marks.row ?? marks.kept;
  for (const t of shown(T, y, frame.height - frame.top, queryMark)) {
    face(t === queryMark);
    onto.fillText(labels.queries(t), frame.left - 7, frame.top + y + (t + 0.5) * cell);
  }
  onto.restore();
  onto.save();
  onto.beginPath();
  onto.rect(frame.left - 8, 0, frame.width - frame.left + 8, frame.top);
  onto.clip();
  for (const s of shown(S, x, frame.width - frame.left - frame.right, marks.column)) {
    face(s === marks.column);
    const name = labels.keys(s), turn = frame.turn || onto.measureText(name).width <= cell - 3 ? frame.turn : turned(cell);
    onto.textAlign = turn ? 'left' : 'center';
    onto.save();
    onto.translate(frame.left + x + (s + 0.5) * cell, frame.top - (turn ? 6 : 10));
    onto.rotate(-turn * Math.PI / 180);
    onto.fillText(name, 0, 0);
    onto.restore();
  }
  onto.restore();
}
