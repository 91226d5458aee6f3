// One script and one stylesheet, written beside the Python that puts them into pages. The same sources give the same bytes.
import {createHash} from 'node:crypto';
import {readdirSync, readFileSync} from 'node:fs';
import {join, relative, sep} from 'node:path';
import {svelte} from '@sveltejs/vite-plugin-svelte';
import {defineConfig, type Plugin} from 'vite';

const here = import.meta.dirname, root = join(here, '..');
const theme = 'src/regard/looking/theme.css';

/** SHA-256 of path and content of every source, in the order of their paths; tests/looking/test_look_assets.py does the same. */
function digest(): string {
  const found = readdirSync(join(here, 'src'), {recursive: true, withFileTypes: true})
    .filter(entry => entry.isFile())
    .map(entry => relative(root, join(entry.parentPath, entry.name)).split(sep).join('/'));
  const hash = createHash('sha256');
  for (const path of [...found, 'web/package-lock.json', 'web/vite.config.ts', theme].sort()) {
    hash.update(path).update('\0').update(readFileSync(join(root, path))).update('\0');
  }
  return hash.digest('hex');
}

/** Says in each file what it was built from, and refuses a script that could end the element it is copied into. */
function signed(): Plugin {
  return {
    name: 'signed',
    generateBundle: {
      order: 'post',
      handler(_, bundle) {
        const head = `/* Built by \`make web\`; sources SHA-256 ${digest()} */\n`;
        for (const file of Object.values(bundle)) {
          if (file.type === 'chunk') {
            if (/<\/?script/i.test(file.code)) this.error('the script could not be copied into a page');
            file.code = head + file.code.trimEnd() + '\n';
          } else {
            if (/<\/style/i.test(String(file.source))) this.error('the style could not be copied into a page');
            file.source = head + String(file.source).trimEnd() + '\n';
          }
        }
      },
    },
  };
}

export default defineConfig({
  root: here,
  plugins: [svelte({configFile: false}), signed()],
  build: {
    outDir: process.env.LOOK_OUT ?? join(root, 'src/regard/looking/assets'),
    emptyOutDir: false,
    target: 'es2022',
    cssCodeSplit: false,
    lib: {entry: 'src/main.ts', formats: ['iife'], name: 'look', fileName: () => 'look.js', cssFileName: 'look'},
  },
});
