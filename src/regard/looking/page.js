// Plain ES2017, copied into each report. It draws nothing: pictures come finished; it repeats the title of what is pointed at.
(() => {
  'use strict';
  for (const figure of document.querySelectorAll('figure')) {
    const out = figure.querySelector('output');
    if (!out) continue;
    const rest = out.textContent;
    let at = null;
    const mark = hit => {
      if (at) at.classList.remove('at');
      for (const on of figure.querySelectorAll('.on')) on.classList.remove('on');
      at = hit;
      out.textContent = hit ? hit.querySelector('title').textContent : rest;
      const svg = hit && hit.closest('svg.heat');
      if (!svg) return;
      const keys = Number(svg.dataset.keys), i = [...svg.querySelectorAll('.w')].indexOf(hit);
      hit.classList.add('at');
      svg.querySelectorAll('.q')[Math.floor(i / keys)].classList.add('on');
      svg.querySelectorAll('.k')[i % keys].classList.add('on');
    };
    figure.addEventListener('pointerover', e => {
      const hit = e.target.closest('.hit');
      if (hit) mark(hit);
    });
    figure.addEventListener('pointerleave', e => { if (e.pointerType === 'mouse') mark(null); });
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
  }
})();
