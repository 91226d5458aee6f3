/** What can be downloaded: views as pictures of lines and letters, or of pixels. */
import type {Boxes, Picture, Places} from '../form';
import {placeName} from '../data/sides';
import {shade, visible} from '../data/text';
import {canvasOf, shares} from './images';
import {FONT} from './matrix';
import {rectOf, shadesImage} from './places';
import type {Palette} from './theme.svelte';

const MAX_CELLS = 128;

/** Makes text safe in XML. */
export function escape(text: string): string {
  return visible(text).replace(/[<>&"']/g, c => `&#${c.charCodeAt(0)};`);
}

function svgOf(width: number, height: number, palette: Palette, parts: string[]): string {
  const size = `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="${escape(FONT)}">\n<rect width="100%" height="100%" fill="${palette.paper}"/>\n${parts.join('\n')}\n</svg>\n`;
}

const px = (value: number) => String(Math.round(value * 100) / 100);

function text(x: number, y: number, size: number, words: string, fill: string, more = ''): string {
  return `<text x="${px(x)}" y="${px(y)}" font-size="${size}" fill="${fill}" ${more}>${escape(words)}</text>`;
}

/** A matrix; of a large one the cells are pixels of a picture in it. */
export function matrixSvg(weights: Float32Array, rows: string[], columns: string[], title: string, palette: Palette, widest: (words: string[]) => number): string {
  const [T, S] = [rows.length, columns.length], small = Math.max(T, S) <= MAX_CELLS, cell = small ? 20 : Math.max(1, Math.floor(1600 / Math.max(T, S)));
  const step = Math.ceil(13 / cell), left = Math.ceil(widest(rows)) + 14, top = Math.ceil(widest(columns)) + 40;
  const parts = [text(8, 20, 14, title, palette.ink), `<rect x="${left}" y="${top}" width="${S * cell}" height="${T * cell}" fill="${palette.ground}"/>`];
  for (let t = 0; t < T; t += step) parts.push(text(left - 6, top + (t + 0.5) * cell + 4, 11, rows[t]!, palette.ink, 'text-anchor="end"'));
  for (let s = 0; s < S; s += step) {
    const x = px(left + (s + 0.5) * cell + 4);
    parts.push(text(Number(x), top - 6, 11, columns[s]!, palette.ink, `transform="rotate(-90 ${x} ${top - 6})"`));
  }
  if (small) {
    for (let t = 0; t < T; t++) {
      for (let s = 0; s < S; s++) {
        const opacity = shade(weights[t * S + s]!).toFixed(3);
        if (Number(opacity)) parts.push(`<rect x="${left + s * cell}" y="${top + t * cell}" width="${cell - 1}" height="${cell - 1}" fill="${palette.map}" fill-opacity="${opacity}"/>`);
      }
    }
  } else {
    const image = shadesImage(Float32Array.from(weights, shade), [T, S], palette.map, palette.paper);
    parts.push(`<image x="${left}" y="${top}" width="${S * cell}" height="${T * cell}" image-rendering="pixelated" href="${image.toDataURL()}"/>`);
  }
  return svgOf(left + S * cell + 8, top + T * cell + 8, palette, parts);
}

export interface Line { from: number; to: number; weight: number; colour: string }

/** Tokens in two columns and the lines between them. */
export function linesSvg(lines: Line[], rows: string[], columns: string[], title: string, palette: Palette, widest: (words: string[]) => number): string {
  const pitch = 22, left = Math.ceil(widest(rows)) + 16, right = left + 260, top = 36;
  const y = (at: number) => top + (at + 0.5) * pitch;
  const parts = [text(8, 20, 14, title, palette.ink)];
  for (const {from, to, weight, colour} of lines) {
    parts.push(`<line x1="${left}" y1="${y(from)}" x2="${right}" y2="${y(to)}" stroke="${colour}" stroke-width="2" stroke-opacity="${weight.toFixed(3)}"/>`);
  }
  rows.forEach((words, t) => parts.push(text(left - 6, y(t) + 4, 13, words, palette.ink, 'text-anchor="end"')));
  columns.forEach((words, s) => parts.push(text(right + 6, y(s) + 4, 13, words, palette.ink)));
  return svgOf(right + Math.ceil(widest(columns)) + 16, top + Math.max(rows.length, columns.length) * pitch + 8, palette, parts);
}

export interface Scene {
  picture: Picture; area: Places | Boxes; cells: ArrayLike<number> | null; ask: number; edge: string; shades: boolean; palette: Palette;
}

/** A picture with its shades, as vectors over pixels. */
export function pictureSvg({picture, area, cells, ask, edge, shades, palette}: Scene): string {
  const scale = 620 / Math.max(picture.width, picture.height), width = Math.round(picture.width * scale), height = Math.round(picture.height * scale);
  const parts = [
    '<filter id="grey"><feColorMatrix type="saturate" values="0"/></filter>',
    `<image width="${width}" height="${height}" preserveAspectRatio="none" href="${escape(picture.src)}"${shades ? ' filter="url(#grey)"' : ''}/>`,
  ];
  const rect = (place: number, look: string) => {
    const at = rectOf(area, place);
    return `<rect x="${px(at.x * width)}" y="${px(at.y * height)}" width="${px(at.width * width)}" height="${px(at.height * height)}" ${look}/>`;
  };
  if (shades && cells) {
    shares(cells).forEach((share, place) => {
      const out = Number.isNaN(cells[place]!);
      if (share || out) parts.push(rect(place, `fill="${out ? palette.paper : palette.heat}" fill-opacity="${out ? 0.7 : (share / 255 * 0.88).toFixed(3)}"`));
    });
  }
  if (area.kind === 'boxes') {
    area.boxes.forEach(([left, top], place) => {
      parts.push(rect(place, `fill="none" stroke="${palette.heat}"`), text(left * width + 4, top * height + 14, 12, placeName(area, place), '#ffffff', 'stroke="#10131a" stroke-width="3" paint-order="stroke"'));
    });
  }
  if (edge) parts.push(`<g transform="scale(${width} ${height})"><path d="${edge}" fill="none" stroke="#ffffff" stroke-width="2" stroke-dasharray="6 4" vector-effect="non-scaling-stroke"/></g>`);
  if (ask >= 0) parts.push(rect(ask, 'fill="none" stroke="#ffffff" stroke-width="3"'));
  return svgOf(width, height, palette, parts);
}

/** The same in pixels, over an image that is grey where shades are. */
export function pictureDrawn({picture, area, cells, ask, edge, shades, palette}: Scene, image: CanvasImageSource, ratio: number): HTMLCanvasElement {
  const scale = 620 * ratio / Math.max(picture.width, picture.height);
  const [canvas, onto] = canvasOf(Math.round(picture.width * scale), Math.round(picture.height * scale)), {width, height} = canvas;
  onto.imageSmoothingEnabled = Math.max(picture.width, picture.height) >= 160;
  onto.drawImage(image, 0, 0, width, height);
  onto.imageSmoothingEnabled = false;
  const box = (place: number) => {
    const at = rectOf(area, place);
    return [at.x * width, at.y * height, at.width * width, at.height * height] as const;
  };
  if (shades && cells && area.kind === 'places') {
    onto.globalAlpha = 0.88;
    onto.drawImage(shadesImage(cells, area.grid, palette.heat, palette.paper), 0, 0, width, height);
  }
  if (area.kind === 'boxes') {
    onto.fillStyle = onto.strokeStyle = palette.heat;
    onto.font = `${13 * ratio}px ${FONT}`;
    area.boxes.forEach((_, place) => {
      const at = box(place);
      onto.globalAlpha = shades && cells ? shares(cells)[place]! / 255 * 0.75 : 0;
      onto.fillRect(...at);
      onto.globalAlpha = 1;
      onto.strokeRect(...at);
      onto.fillText(placeName(area, place), at[0] + 5, at[1] + 16 * ratio);
    });
  }
  onto.globalAlpha = 1;
  onto.strokeStyle = '#ffffff';
  if (edge) {
    onto.setLineDash([6 * ratio, 4 * ratio]);
    onto.lineWidth = 2 * ratio;
    const path = new Path2D();
    path.addPath(new Path2D(edge), new DOMMatrix().scale(width, height));
    onto.stroke(path);
    onto.setLineDash([]);
  }
  onto.lineWidth = 3 * ratio;
  if (ask >= 0) onto.strokeRect(...box(ask));
  return canvas;
}
