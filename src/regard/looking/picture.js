// Plain ES2017, copied into each page before page.js. What a place or a token of a picture attends to: it recolours cells.
const words = w => w >= 0.0001 ? w.toFixed(4) : w <= 0 ? '0' : w.toExponential(1);
const shade = w => Math.pow(Math.min(Math.max(w, 0), 1), 0.7);

const openPictures = (shown, data, tiles) => {
  const out = shown.querySelector('output'), svgSpace = 'http://www.w3.org/2000/svg';
  const steps = {ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0]};
  const read = stored => {
    const bytes = Uint8Array.from(atob(stored.data), c => c.charCodeAt(0)), view = new DataView(bytes.buffer);
    const [heads, T, S] = stored.shape, rowOf = new Map(), standing = [];
    stored.q.windows.forEach((places, g) => places.forEach((place, i) => {
      if (place < 0) return;
      rowOf.set(place, stored.q.tokens.length + g * places.length + i);
      standing.push([rowOf.get(place), g]);
    }));
    const row = (head, t) => {
      const sums = new Float64Array(S);
      let attending = 0;
      for (let h = head < 0 ? 0 : head; h < (head < 0 ? heads : head + 1); h++) {
        let total = 0;
        for (let s = 0; s < S; s++) {
          const w = Math.pow(view.getUint16(2 * ((h * T + t) * S + s), true) / 65535, 2);
          sums[s] += w;
          total += w;
        }
        if (total > 0.5) attending++;
      }
      return sums.map(w => w / Math.max(attending, 1));
    };
    return {q: stored.q, k: stored.k, rowOf, standing, row};
  };
  const layers = [];
  const layer = i => layers[i] || (layers[i] = read(data.weights[i]));
  const placeIn = (grid, query) => Math.floor(query.y * grid[0]) * grid[1] + Math.floor(query.x * grid[1]);
  const name = (grid, place) => `row ${Math.floor(place / grid[1]) + 1}, column ${place % grid[1] + 1}`;

  // What a query attends to: a number for each cell, NaN outside its window; and for each token that stands nowhere.
  const lay = (one, head, query) => {
    const {q, k} = one, free = k.tokens.length, cells = new Float64Array(k.grid ? k.grid[0] * k.grid[1] : 0).fill(NaN);
    const put = (row, g) => k.windows[g].forEach((place, i) => { if (place >= 0) cells[place] = row[free + i]; });
    const windowOf = g => k.windows.length > 1 ? g : 0;
    let tokens = [];
    if (query.every) {
      const sums = new Map();
      for (const [t, g] of one.standing) {
        const w = windowOf(g), row = one.row(head, t), sum = sums.get(w);
        if (sum) { row.forEach((value, s) => { sum.row[s] += value; }); sum.count++; } else sums.set(w, {row, count: 1});
      }
      sums.forEach((sum, w) => {
        const mean = sum.row.map(value => value / sum.count);
        put(mean, w);
        tokens = mean.slice(0, free);
      });
    } else {
      const t = 'token' in query ? query.token : one.rowOf.get(placeIn(q.grid, query));
      if (t === undefined) return {cells, tokens};
      const row = one.row(head, t), wide = q.windows[0].length;
      put(row, windowOf(wide ? Math.floor(Math.max(t - q.tokens.length, 0) / wide) : 0));
      tokens = row.slice(0, free);
    }
    return {cells, tokens};
  };
  const largest = cells => cells.reduce((best, w, i) => w > (best < 0 ? 0 : cells[best]) ? i : best, -1);

  const panes = [...shown.querySelectorAll('.map')].map((pane, g) => pane.classList.contains('seen') ? open(pane, g) : null);
  function open(pane, g) {
    const svg = pane.querySelector('.shades'), mine = tiles.filter(tile => data.maps[tile.dataset.map].group === g);
    const first = data.weights[data.maps[mine[0].dataset.map].shared];
    const rest = first.q.tokens.length ? {token: 0} : {every: true};
    let map = null, query = rest, kept = false, reading = null, laid = null, redraw = 0;
    const one = () => layer(map.shared);
    const grid = () => one().k.grid || one().q.grid;
    const called = () => query.every ? 'every place' : 'token' in query ? one().q.tokens[query.token] :
      name(one().q.grid, placeIn(one().q.grid, query));
    const tell = () => {
      if (reading !== null && one().k.grid) {
        const w = laid.cells[reading];
        out.textContent = `${called()} → ${name(grid(), reading)}  ${Number.isNaN(w) ? 'outside its window' : words(w)}`;
      } else if (query === rest) {
        out.textContent = data.groups[g].how;
      } else {
        const values = one().k.grid ? laid.cells : laid.tokens, best = largest(values);
        const what = best < 0 ? 'nothing' : one().k.grid ? name(grid(), best) : one().k.tokens[best];
        out.textContent = best < 0 ? `${called()} attends to nothing here` : `${called()} → most to ${what}  ${words(values[best])}`;
      }
    };
    const outline = (kind, place) => {
      const old = svg.querySelector(`.${kind}`);
      if (old) old.remove();
      if (place === null) return;
      const rect = document.createElementNS(svgSpace, 'rect');
      const look = {class: kind, x: place % grid()[1], y: Math.floor(place / grid()[1]), width: 1, height: 1};
      for (const [key, value] of Object.entries(look)) rect.setAttribute(key, value);
      svg.append(rect);
    };
    const paint = () => {
      const [height, width] = grid();
      laid = lay(one(), map.head, query);
      if (svg.getAttribute('viewBox') !== `0 0 ${width} ${height}`) {
        svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
        svg.textContent = '';
        for (let i = 0; i < height * width; i++) {
          const cell = document.createElementNS(svgSpace, 'rect');
          const look = {class: 'p', x: i % width, y: Math.floor(i / width), width: 1, height: 1};
          for (const [key, value] of Object.entries(look)) cell.setAttribute(key, value);
          svg.append(cell);
        }
        reading = null;
      }
      const best = largest(laid.cells), most = best < 0 ? 0 : laid.cells[best];
      svg.querySelectorAll('.p').forEach((cell, i) => {
        const w = one().k.grid ? laid.cells[i] : 0, outside = Number.isNaN(w);
        cell.classList.toggle('out', outside);
        if (outside) cell.removeAttribute('fill-opacity');
        else cell.setAttribute('fill-opacity', (w / (most || 1)).toFixed(3));
      });
      pane.querySelectorAll('.ramp .tick').forEach((tick, i) => { tick.textContent = words(i / 4 * most); });
      pane.querySelectorAll('.asks').forEach((chip, i) => chip.setAttribute('aria-pressed', String(query.token === i)));
      const every = pane.querySelector('[data-every]');
      if (every) every.setAttribute('aria-pressed', String(Boolean(query.every)));
      pane.querySelectorAll('.answers').forEach((chip, i) => {
        chip.querySelector('small').textContent = laid.tokens.length ? words(laid.tokens[i]) : '';
        chip.style.setProperty('--w', laid.tokens.length ? shade(laid.tokens[i]) : 0);
      });
      outline('ask', one().q.grid && 'y' in query ? placeIn(grid(), query) : null);
      outline('reads', reading);
      svg.setAttribute('aria-label', `${map.title}: ${called()}`);
      tell();
    };
    const small = tile => {
      const other = data.maps[tile.dataset.map], from = layer(other.shared);
      if (!from.k.grid) return;
      const [height, width] = from.k.grid, {cells} = lay(from, other.head, query), best = largest(cells);
      const canvas = document.createElement('canvas'), large = document.createElement('canvas');
      const zoom = Math.ceil(96 / Math.max(width, height));
      Object.assign(canvas, {width, height});
      Object.assign(large, {width: width * zoom, height: height * zoom});
      const pixels = canvas.getContext('2d').createImageData(width, height);
      cells.forEach((w, i) => { pixels.data[4 * i + 3] = w > 0 ? Math.round(255 * w / cells[best]) : 0; });
      canvas.getContext('2d').putImageData(pixels, 0, 0);
      const onto = large.getContext('2d');
      onto.imageSmoothingEnabled = false;
      onto.drawImage(canvas, 0, 0, large.width, large.height);
      tile.style.setProperty('--m', `url(data:${large.toDataURL().slice(5)})`);
    };
    const ask = (asked, keep) => {
      query = asked;
      kept = keep;
      paint();
      if (!keep && asked !== rest) return;
      clearTimeout(redraw);  // a held arrow key draws the thumbnails once
      redraw = setTimeout(() => mine.forEach(small), 80);
    };
    const centre = (of, place) => ({y: (Math.floor(place / of[1]) + 0.5) / of[0], x: (place % of[1] + 0.5) / of[1]});
    const under = e => {
      const box = svg.getBoundingClientRect(), inside = part => Math.min(Math.max(part, 0), 1 - 1e-9);
      const y = inside((e.clientY - box.top) / box.height), x = inside((e.clientX - box.left) / box.width);
      return placeIn(grid(), {y, x});
    };
    svg.addEventListener('pointermove', e => {
      if (e.pointerType !== 'mouse') return;
      const place = under(e);
      if (kept || !one().q.grid) {
        if (place === reading) return;
        reading = place;
        outline('reads', place);
        tell();
      } else if (!('y' in query) || placeIn(grid(), query) !== place) ask(centre(grid(), place), false);
    });
    svg.addEventListener('pointerleave', e => {
      if (e.pointerType !== 'mouse') return;
      reading = null;
      if (!kept) query = rest;
      paint();
    });
    svg.addEventListener('click', e => {
      const place = under(e);
      if (!one().q.grid) { reading = place; paint(); return; }
      const again = kept && 'y' in query && placeIn(grid(), query) === place;
      reading = null;
      ask(again ? rest : centre(grid(), place), !again);
    });
    pane.addEventListener('click', e => {
      const chip = e.target.closest('button.chip');
      if (chip) { reading = null; ask(chip.hasAttribute('data-every') ? {every: true} : {token: Number(chip.dataset.token)}, true); }
    });
    pane.addEventListener('keydown', e => {
      if (e.key === 'Escape') { reading = null; ask(rest, false); return; }
      const step = e.target === svg && steps[e.key];
      if (!step) return;
      e.preventDefault();
      const [height, width] = grid(), reads = e.shiftKey || !one().q.grid;
      const from = reads ? reading : 'y' in query ? placeIn(grid(), query) : null;
      const y = from === null ? 0 : Math.floor(from / width) + step[0], x = from === null ? 0 : from % width + step[1];
      if (y < 0 || y >= height || x < 0 || x >= width) return;
      if (reads) { reading = y * width + x; paint(); } else { reading = null; ask(centre(grid(), y * width + x), true); }
    });
    const box = pane.querySelector('.switch input');
    if (box) box.addEventListener('change', () => pane.querySelector('.over').classList.toggle('bare', !box.checked));
    return {show: chosen => { map = chosen; paint(); }};
  }
  return panes;
};
