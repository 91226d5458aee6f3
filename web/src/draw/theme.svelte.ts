/** Colours as the style has them, and the switch between light and dark. */

export interface Palette { paper: string; ground: string; ink: string; soft: string; line: string; map: string; heat: string; mark: string; curves: string[] }
export type Scheme = 'auto' | 'light' | 'dark';

const dark = matchMedia('(prefers-color-scheme: dark)');

/** The rules of the style for dark screens; the switch decides when they hold. */
function darkRules(): CSSMediaRule[] {
  return [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]).filter((rule): rule is CSSMediaRule => {
    return rule instanceof CSSMediaRule && rule.conditionText.includes('prefers-color-scheme');
  });
}

function read(): Palette {
  const style = getComputedStyle(document.documentElement);
  const value = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return {
    paper: value('paper'), ground: value('ground'), ink: value('ink'), soft: value('soft'), line: value('line'),
    map: value('map'), heat: value('heat'), mark: value('s1'), curves: [0, 1, 2, 3, 4, 5].map(i => value(`s${i}`)),
  };
}

class Theme {
  scheme = $state<Scheme>('auto');
  palette = $state.raw<Palette>(read());
  private readonly rules = darkRules();
  private readonly asWritten = this.rules.map(rule => rule.media.mediaText);

  constructor() {
    dark.addEventListener('change', () => { this.palette = read(); });
  }

  choose(scheme: Scheme): void {
    this.scheme = scheme;
    this.rules.forEach((rule, i) => {
      rule.media.mediaText = {auto: this.asWritten[i]!, light: 'not all', dark: 'screen'}[scheme];
    });
    document.documentElement.style.colorScheme = scheme === 'auto' ? '' : scheme;
    this.palette = read();
  }

  get isDark(): boolean {
    return this.scheme === 'auto' ? dark.matches : this.scheme === 'dark';
  }
}

export const theme = new Theme();

/** Red, green, blue of a colour written #rrggbb. */
export function channels(colour: string): [number, number, number] {
  const value = parseInt(colour.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}
