/** The numbers as regard's Maps.to_json writes them, of a run whose weights the page holds. */
import type {Boxes, Run, Side} from '../form';
import type {Source} from './source';

/** The shortest decimals that give the same float32 back. */
export function shortest(weight: number): string {
  for (let digits = 1; digits < 9; digits++) {
    const text = String(Number(weight.toPrecision(digits)));
    if (Math.fround(Number(text)) === weight) return text;
  }
  return String(weight);
}

function sideJson(side: Side): unknown {
  if (side.kind === 'tokens') return side.tokens;
  const {kind, ...rest} = side;
  if (kind === 'places') return rest;
  const {names, ...others} = rest as Omit<Boxes, 'kind'>;
  return {...others, labels: names};
}

export async function mapsJson(source: Source): Promise<string> {
  const {run} = source;
  const maps = await Promise.all(run.layers.map(async (layer, index) => {
    const weights = await source.whole(index), [H, T, S] = layer.shape;
    const row = (from: number) => `[${Array.from(weights.subarray(from, from + S), shortest).join(', ')}]`;
    const heads = Array.from({length: H}, (_, h) => `[${Array.from({length: T}, (_, t) => row((h * T + t) * S)).join(', ')}]`);
    const named = {layer: layer.name, kind: layer.kind, queries: sideJson(run.sides[layer.queries]!), keys: sideJson(run.sides[layer.keys]!)};
    return `${JSON.stringify(named).slice(0, -1)}, "weights": [${heads.join(', ')}]}`;
  }));
  return `${JSON.stringify(told(run)).slice(0, -1)}, "maps": [${maps.join(', ')}]}`;
}

function told({title, source, output, details, scores, pictures}: Run): unknown {
  const pngs = pictures.map(({name, src}) => ({name, png: src.slice(src.indexOf(',') + 1)}));
  return {format: 'regard-maps-2', title, source, output, details, scores, pictures: pngs};
}
