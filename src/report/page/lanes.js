// Lanes of the training thread and the workers, and the bars of thread states: plain SVG.
(function () {
  'use strict';
  const NS = 'http://www.w3.org/2000/svg';
  const ROW = 26;
  const TOP = 20;
  // Slice kinds as in flatout/marker.h: label and colour (a CSS variable or a value).
  const KINDS = {
    2: ['input wait', 'var(--input_wait)'], 3: ['forward', 'var(--forward)'],
    4: ['backward', 'var(--backward)'], 5: ['optimizer', 'var(--optimizer)'],
    6: ['h2d copy', 'var(--h2d)'], 7: ['sync', 'var(--sync)'],
    8: ['communication', 'var(--communication)'], 9: ['checkpoint', 'var(--checkpoint)'],
    10: ['garbage collection', '#d8436b'], 11: ['validation', '#8d99ae'],
    12: ['workers start', '#8d99ae'], 13: ['makes a batch', '#3fae8c'],
    15: ['collate', '#c9b458'], 16: ['hands over', '#c97ba9'], 18: ['logging', '#b0715a'],
    22: ['feed', '#c9b458'],
  };
  const INNER = { 10: true, 15: true, 16: true, 22: true };
  const STATES = {
    python: '#f0b860', native: '#e8923c', kernel: '#c9782e', run_queue: '#d8566b',
    gil_wait: '#9a6fc4', lock: '#b79ad6', disk: '#2f8fc4', reclaim: '#2a9d8f',
    poll: '#8fb0d8', sleep: '#b9c2cd', child: '#a5b3a9', stopped: '#7d8590', unknown: '#d5d9df',
  };

  function make(tag, attributes, text) {
    const node = document.createElementNS(NS, tag);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    return node;
  }
  function el(tag, css, text) {
    const node = document.createElement(tag);
    if (css) node.className = css;
    if (text !== undefined) node.textContent = text;
    return node;
  }
  function seconds(s) {
    const a = Math.abs(s);
    if (a === 0) return '0 s';
    if (a < 0.9995e-3) return +(s * 1e6).toPrecision(3) + ' µs';
    if (a < 0.9995) return +(s * 1e3).toPrecision(3) + ' ms';
    if (a < 120) return +s.toPrecision(4) + ' s';
    return +(s / 60).toPrecision(4) + ' min';
  }
  // A round step so that about `count` ticks fit into `span` seconds.
  function tickStep(span, count) {
    const raw = span / Math.max(count, 1);
    const clocks = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
    if (raw > 5) return clocks.find((s) => s >= raw) || Math.ceil(raw / 86400) * 86400;
    const base = Math.pow(10, Math.floor(Math.log10(raw)));
    return [1, 2, 5, 10].find((m) => base * m >= raw) * base;
  }
  // A moment of the run; beyond two minutes as on a clock.
  function clock(t, length) {
    if (length < 120) return t === 0 ? '0 s' : +t.toPrecision(6) + ' s';
    const whole = Math.floor(t + 1e-6);
    const pad = (n) => String(n).padStart(2, '0');
    const rest = t - whole > 1e-3 ? (t - whole).toFixed(2).slice(1).replace(/0+$/, '') : '';
    const hours = Math.floor(whole / 3600);
    const minutes = Math.floor(whole / 60) % 60;
    return (hours > 0 ? hours + ':' + pad(minutes) : minutes) + ':' + pad(whole % 60) + rest;
  }

  function legendKey(color) {
    const key = make('svg', { viewBox: '0 0 10 10', class: 'key', 'aria-hidden': 'true' });
    const rect = make('rect', { width: 10, height: 10 });
    rect.style.fill = color;
    key.appendChild(rect);
    return key;
  }

  function drawLanes(data) {
    const host = document.getElementById('lanes');
    const select = document.getElementById('lane-window');
    if (!host || !select) return;
    const windows = data.lanes.windows;
    if (windows.length === 0) {
      host.closest('section').remove();
      for (const a of document.querySelectorAll('a[href="#workers"]')) a.remove();
      return;
    }
    windows.forEach((w, i) => {
      const option = el('option', '', w.title);
      option.value = i;
      select.appendChild(option);
    });
    let zoom = 1;
    const seen = new Set();

    function draw(keepPlace) {
      const w = windows[+select.value || 0];
      const old = host.querySelector('.lane-scroll');
      const centre = old && keepPlace ? (old.scrollLeft + old.clientWidth / 2) / old.scrollWidth : 0;
      host.textContent = '';
      const grid = el('div', 'lane-grid');
      const names = el('div', 'lane-names');
      for (const lane of w.lanes) names.appendChild(el('div', '', lane.name));
      const scroll = el('div', 'lane-scroll');
      scroll.tabIndex = 0;
      scroll.setAttribute('role', 'region');
      scroll.setAttribute('aria-label', 'Lanes, scrolls sideways');
      grid.append(names, scroll);
      host.appendChild(grid);
      const room = Math.max(scroll.clientWidth, 120);
      const width = room * zoom;
      const span = Math.max(w.end - w.begin, 1e-6);
      const scale = width / span;
      const height = TOP + w.lanes.length * ROW;
      const svg = make('svg', { width: width, height: height, role: 'img', 'aria-label': w.title });
      const step = tickStep(span, width / 110);
      w.lanes.forEach((lane, i) => {
        svg.appendChild(make('rect', { class: 'row', x: 0, y: TOP + i * ROW + 2, width: width, height: ROW - 4, rx: 3 }));
      });
      for (let t = Math.ceil(w.begin / step) * step; t < w.end; t += step) {
        const x = (t - w.begin) * scale;
        svg.appendChild(make('line', { class: 'rule', x1: x, x2: x, y1: TOP - 4, y2: height }));
        if (x < width - 60) svg.appendChild(make('text', { class: 'tick', x: x + 3, y: 12 }, clock(t, data.length_s)));
      }
      w.lanes.forEach((lane, i) => {
        for (const [begin, end, kind, batch] of lane.slices) {
          const known = KINDS[kind] || ['other', 'var(--other)'];
          seen.add(kind);
          const x = (begin - w.begin) * scale;
          const wide = Math.max((end - begin) * scale, 0.7);
          const inner = INNER[kind] ? 6 : 0;
          const g = make('g', {});
          const rect = make('rect', { x: x.toFixed(2), y: TOP + i * ROW + 2 + inner, rx: wide > 4 ? 2 : 0,
            width: Math.max(wide - 0.4, 0.5).toFixed(2), height: ROW - 4 - inner });
          rect.style.fill = known[1];
          g.appendChild(rect);
          const what = known[0] + (batch !== undefined ? ' ' + batch : '');
          g.appendChild(make('title', {}, lane.name + ': ' + what + ', ' + seconds(end - begin) + ' at ' + clock(begin, data.length_s)));
          const label = batch !== undefined ? String(batch) : known[0];
          if (wide > label.length * 6.2 + 6 && !inner) {
            g.appendChild(make('text', { x: (x + 4).toFixed(2), y: TOP + i * ROW + 17 }, label));
          }
          svg.appendChild(g);
        }
      });
      scroll.appendChild(svg);
      if (keepPlace) scroll.scrollLeft = centre * scroll.scrollWidth - scroll.clientWidth / 2;
      const legend = document.getElementById('lane-legend');
      legend.textContent = '';
      for (const kind of Array.from(seen).sort((a, b) => a - b)) {
        if (!KINDS[kind]) continue;
        const item = el('li');
        item.append(legendKey(KINDS[kind][1]), KINDS[kind][0]);
        legend.appendChild(item);
      }
      if (data.lanes.left_out > 0) {
        legend.appendChild(el('li', 'muted', data.lanes.left_out + ' more threads are not drawn'));
      }
    }
    // A window opens so far zoomed in that about 40 steps fill it.
    function fitZoom() {
      const w = windows[+select.value || 0];
      const most = Math.max.apply(null, w.lanes.map((l) => l.slices.length));
      zoom = 1;
      while (zoom < 64 && most / zoom > 160) zoom *= 2;
    }
    select.addEventListener('change', () => { fitZoom(); draw(false); });
    document.getElementById('lane-in').addEventListener('click', () => { zoom = Math.min(zoom * 2, 256); draw(true); });
    document.getElementById('lane-out').addEventListener('click', () => { zoom = Math.max(zoom / 2, 1); draw(true); });
    let width = 0;
    new ResizeObserver(() => {
      if (host.isConnected && host.clientWidth !== width) {
        width = host.clientWidth;
        draw(true);
      }
    }).observe(host);
    fitZoom();
    draw(false);
    width = host.clientWidth;
  }

  function drawStates(data) {
    const host = document.getElementById('thread-states');
    if (!host) return;
    const used = new Set();
    for (const group of data.threads.groups) {
      const total = group.us.reduce((a, b) => a + (b || 0), 0);
      if (total <= 0) continue;
      const row = el('div', 'state-row');
      const head = el('div');
      head.append(el('span', '', group.name + (group.training ? ' – the training thread' : '')));
      row.appendChild(head);
      const svg = make('svg', { viewBox: '0 0 1000 18', preserveAspectRatio: 'none', role: 'img' });
      let x = 0;
      let best = ['', 0];
      group.us.forEach((us, i) => {
        if (!us) return;
        const state = data.threads.states[i];
        const share = us / total;
        used.add(i);
        if (share > best[1]) best = [state.label, share];
        const rect = make('rect', { x: x * 1000, y: 0, width: Math.max(share * 1000 - 1, 0.6), height: 18 });
        rect.style.fill = STATES[state.name] || '#999';
        rect.appendChild(make('title', {}, state.label + ' ' + (share * 100).toFixed(1) + ' %'));
        svg.appendChild(rect);
        x += share;
      });
      svg.setAttribute('aria-label', group.name + ': mostly ' + best[0]);
      head.append(el('span', 'muted', best[0] + ' ' + (best[1] * 100).toFixed(0) + ' %'));
      row.appendChild(svg);
      host.appendChild(row);
    }
    const legend = el('ul', 'legend');
    for (const i of Array.from(used).sort((a, b) => a - b)) {
      const state = data.threads.states[i];
      const item = el('li');
      item.append(legendKey(STATES[state.name] || '#999'), state.label);
      legend.appendChild(item);
    }
    host.appendChild(legend);
  }

  window.flatoutLanes = { drawLanes: drawLanes, drawStates: drawStates, legendKey: legendKey, el: el,
    seconds: seconds, clock: clock, tickStep: tickStep };
})();
