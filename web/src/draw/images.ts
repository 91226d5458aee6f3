/** Shades as small pictures: one pixel a cell, to be enlarged without smoothing. */
import type {Tile} from '../data/numbers';
import {boxOf} from '../data/sides';
import type {Boxes, Places} from '../form';
import {channels} from './theme.svelte';

export function canvasOf(width: number, height: number): [HTMLCanvasElement, CanvasRenderingContext2D] {
  const canvas = Object.assign(document.createElement('canvas'), {width, height});
  return [canvas, canvas.getContext('2d')!];
}

/** Draws shades in one colour. */
export function tileImage({height, width, shades}: Tile, colour: string): HTMLCanvasElement {
  const [canvas, onto] = canvasOf(width, height), image = onto.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer), [red, green, blue] = channels(colour);
  const base = red | green << 8 | blue << 16;
  for (let i = 0; i < pixels.length; i++) pixels[i] = base | shades[i]! << 24;
  onto.putImageData(image, 0, 0);
  return canvas;
}

/** Opacities of cells over a picture: the largest weight is the strongest, 0 for those outside. */
export function shares(cells: ArrayLike<number>): Uint8Array {
  let most = 0;
  for (let i = 0; i < cells.length; i++) if (cells[i]! > most) most = cells[i]!;
  return Uint8Array.from(cells, w => w > 0 ? Math.round(255 * w / most) : 0);
}

const pictures = new Map<string, Promise<HTMLCanvasElement>>();

/** A picture in grey, at most so many pixels on a side, so that colour means attention alone. */
export function pictureImage(src: string, most: number): Promise<HTMLCanvasElement> {
  const key = `${most} ${src}`, found = pictures.get(key) ?? load(src).then(image => grey(image, most));
  pictures.set(key, found);
  return found;
}

export async function load(src: string): Promise<HTMLImageElement> {
  if (!/^data:image\/png;base64,[\w+/=]*$/.test(src)) throw new Error('a picture is not PNG');
  const image = new Image();
  image.src = src;
  await image.decode();
  return image;
}

function grey(image: HTMLImageElement, most: number): HTMLCanvasElement {
  const scale = Math.min(1, most / Math.max(image.naturalWidth, image.naturalHeight));
  const [canvas, onto] = canvasOf(Math.max(1, Math.round(image.naturalWidth * scale)), Math.max(1, Math.round(image.naturalHeight * scale)));
  onto.drawImage(image, 0, 0, canvas.width, canvas.height);
  const pixels = onto.getImageData(0, 0, canvas.width, canvas.height), {data} = pixels;
  for (let i = 0; i < data.length; i += 4) {
    data[i] = data[i + 1] = data[i + 2] = 0.2126 * data[i]! + 0.7152 * data[i + 1]! + 0.0722 * data[i + 2]!;
  }
  onto.putImageData(pixels, 0, 0);
  return canvas;
}

/** Draws what a query attends to over a small grey picture. */
export function placesImage(under: HTMLCanvasElement, cells: ArrayLike<number>, keys: Places | Boxes, colour: string): HTMLCanvasElement {
  const zoom = Math.max(1, Math.ceil(96 / Math.max(under.width, under.height)));
  const [canvas, onto] = canvasOf(under.width * zoom, under.height * zoom), opacity = shares(cells);
  onto.imageSmoothingEnabled = false;
  onto.drawImage(under, 0, 0, canvas.width, canvas.height);
  if (keys.kind === 'places') {
    const [height, width] = keys.grid;
    onto.drawImage(tileImage({height, width, shades: opacity}, colour), 0, 0, canvas.width, canvas.height);
    return canvas;
  }
  onto.fillStyle = onto.strokeStyle = colour;
  opacity.forEach((share, place) => {
    const [left, top, right, bottom] = boxOf(keys, place);
    const box = [left * canvas.width, top * canvas.height, (right - left) * canvas.width, (bottom - top) * canvas.height] as const;
    onto.globalAlpha = share / 255 * 0.7;
    onto.fillRect(...box);
    onto.globalAlpha = 0.5;
    onto.strokeRect(...box);
  });
  return canvas;
}
