// Plain ES2017, copied into each page. It draws nothing: pictures come finished; it recolours cells and repeats titles.
(() => {
  'use strict';
  const store = document.getElementById('maps');
  const data = store ? JSON.parse(store.textContent) : null;

  for (const figure of document.querySelectorAll('figure')) {
    const out = figure.querySelector('output');
    if (!out) continue;
    let rest = out.textContent, at = null;
    const onPicture = () => figure.querySelector('.map.seen:not([hidden])');
    const mark = hit => {
      if (at) at.classList.remove('at');
      for (const on of figure.querySelectorAll('.on')) on.classList.remove('on');
      at = hit;
      out.textContent = hit ? hit.querySelector('title').textContent : rest;
      const svg = hit && hit.closest('svg.heat');
      if (!svg) return;
      const cells = svg.querySelectorAll('.w'), keys = Number(svg.dataset.keys), i = [...cells].indexOf(hit);
      const q = Math.floor(i / keys), k = i % keys;
      hit.classList.add('at');
      svg.querySelectorAll('.q')[q].classList.add('on');
      svg.querySelectorAll('.k')[k].classList.add('on');
      const lines = figure.querySelector('.tokens:not([hidden])');
      if (!lines) return;
      lines.querySelectorAll('[data-side=q] .tok')[q].classList.add('on');
      lines.querySelectorAll('[data-side=k] .tok').forEach((tok, s) => {
        tok.style.setProperty('--w', cells[q * keys + s].getAttribute('fill-opacity'));
        tok.classList.toggle('on', s === k);
      });
    };
    figure.addEventListener('pointerover', e => {
      if (onPicture()) return;
      const hit = e.target.closest('.hit');
      if (hit) return mark(hit);
      const tok = e.target.closest('[data-side=q] .tok');
      const svg = tok && figure.querySelector('.map:not([hidden]) svg.heat');
      if (!svg) return;
      const cells = [...svg.querySelectorAll('.w')], keys = Number(svg.dataset.keys), q = [...tok.parentNode.children].indexOf(tok);
      const row = cells.slice(q * keys, (q + 1) * keys);
      mark(row.reduce((a, b) => Number(b.getAttribute('fill-opacity')) > Number(a.getAttribute('fill-opacity')) ? b : a));
    });
    figure.addEventListener('pointerleave', e => { if (e.pointerType === 'mouse' && !onPicture()) mark(null); });
    figure.addEventListener('keydown', e => {
      const svg = e.target.closest('svg.heat');
      const keys = svg && Number(svg.dataset.keys);
      const step = svg && {ArrowRight: 1, ArrowLeft: -1, ArrowDown: keys, ArrowUp: -keys}[e.key];
      if (!step) return;
      e.preventDefault();
      const cells = [...svg.querySelectorAll('.w')], i = cells.indexOf(at), to = i + step;
      if (i < 0) mark(cells[0]);
      else if (Math.abs(step) === 1 ? Math.floor(to / keys) === Math.floor(i / keys) : cells[to]) mark(cells[to]);
    });
    figure.addEventListener('show', e => { rest = e.detail; mark(null); });
  }
  if (!data) return;

  const shown = document.querySelector('.shown'), tiles = [...document.querySelectorAll('.tile')];
  const panes = openPictures(shown, data, tiles);
  const recolour = (map, group) => {
    const bytes = Uint8Array.from(atob(map.weights), c => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const svg = shown.querySelectorAll('.map')[map.group].querySelector('svg');
    svg.setAttribute('aria-label', map.title);
    svg.querySelectorAll('.w').forEach((cell, i) => {
      const w = view.getFloat32(4 * i, true), q = Math.floor(i / group.keys.length), k = i % group.keys.length;
      cell.setAttribute('fill-opacity', shade(w).toFixed(3));
      cell.querySelector('title').textContent = `${group.queries[q]} → ${group.keys[k]}  ${words(w)}`;
    });
  };
  const choose = tile => {
    const map = data.maps[Number(tile.dataset.map)], group = data.groups[map.group], pane = panes[map.group];
    shown.querySelectorAll('.map').forEach((m, g) => { m.hidden = g !== map.group; });
    shown.querySelectorAll('.tokens').forEach(m => { m.hidden = Number(m.dataset.group) !== map.group; });
    const scale = shown.querySelector('.scale');
    if (scale) scale.toggleAttribute('hidden', Boolean(pane));
    shown.querySelector('h2').textContent = map.title;
    shown.querySelector('.about').textContent = map.layer;
    shown.dispatchEvent(new CustomEvent('show', {detail: group.how}));
    if (pane) pane.show(map); else recolour(map, group);
    for (const other of tiles) {
      other.setAttribute('aria-pressed', String(other === tile));
      if (other.closest('.heads') === tile.closest('.heads')) other.tabIndex = other === tile ? 0 : -1;
    }
    const box = shown.getBoundingClientRect();
    if (box.bottom < 80 || box.top > innerHeight - 80) {
      shown.scrollIntoView({block: 'start', behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth'});
    }
  };
  for (const tile of tiles) {
    tile.addEventListener('click', () => choose(tile));
    const map = data.maps[Number(tile.dataset.map)], pane = panes[map.group];
    if (pane && tile.getAttribute('aria-pressed') === 'true') pane.show(map);
  }
  document.addEventListener('keydown', e => {
    const tile = e.target.closest && e.target.closest('.tile');
    if (!tile) return;
    const here = [...tile.closest('.heads').querySelectorAll('.tile')], wide = Number(tile.closest('.heads').dataset.wide);
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide}[e.key];
    const next = step && here[here.indexOf(tile) + step];
    if (!next) return;
    e.preventDefault();
    next.focus();
    choose(next);
  });
})();
