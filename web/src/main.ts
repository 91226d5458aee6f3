import '../../src/regard/looking/theme.css';
import './app.css';
import {mount} from 'svelte';
import App from './App.svelte';
import {Source} from './data/source';
import {begin} from './doing/doing.svelte';
import type {Given} from './form';
import {open} from './state.svelte';

const given = JSON.parse(document.getElementById('look')!.textContent!) as Given;
if (given.mode === 'file') open(given.runs.map(run => new Source(run)));
else void begin(given.runs);
mount(App, {target: document.getElementById('app')!});
