/** Strangers' text made legible and numbers made short, as regard/looking/text.py does. */

const NAMED: Record<string, string> = {'\n': '↵', '\t': '⇥', '\r': '␍'};
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u;
const JOINERS = '\u200c\u200d';

function hidden(c: string): boolean {
  const code = c.codePointAt(0)!;
  const notACharacter = (code & 0xfffe) === 0xfffe || (0xfdd0 <= code && code <= 0xfdef);
  return notACharacter || (HIDDEN.test(c) && !JOINERS.includes(c));
}

/** Shows controls, bidi marks, lone surrogates and non-characters as signs. */
export function visible(text: string): string {
  if (/^[\x20-\x7e]*$/.test(text)) return text;
  let found = '';
  for (const c of text) {
    found += NAMED[c] ?? (hidden(c) ? `⟨U+${c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0')}⟩` : c);
  }
  return found;
}

/** Cuts text to a number of characters, the last an ellipsis where something was cut. */
export function shorten(text: string, limit: number): string {
  const characters = [...text];
  return characters.length <= limit ? text : characters.slice(0, limit - 1).join('') + '…';
}

/** Names a token: its spaces are shown, an empty one is ∅, a long one ends in an ellipsis. */
export function tokenLabel(token: string, limit = 18): string {
  const begun = token.length > limit ? [...token].slice(0, limit + 1).join('') : token;
  return shorten(visible(begun).replaceAll(' ', '␣') || '∅', limit);
}

/** Four decimals, or two digits and a power of ten where these would say nothing. */
export function weightText(weight: number): string {
  if (weight >= 0.0001) {
    // Half of the last digit occurs in odd multiples of 1/32 alone; Python takes the even neighbour, toFixed the upper.
    const low = Math.floor(weight * 1e4);
    const tie = (weight * 32) % 2 === 1;
    return (tie ? (low + low % 2) / 1e4 : weight).toFixed(4);
  }
  return weight <= 0 ? '0' : weight.toExponential(1);
}

/** The opacity of a cell, weight^0.7: 0.05 is seen, a diffuse row stays pale. */
export function shade(weight: number): number {
  return Math.pow(Math.min(Math.max(weight, 0), 1), 0.7);
}
