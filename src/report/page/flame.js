// Zoom, search and keyboard for the flame graph; used by the SVG alone and by the HTML report.
(function () {
  'use strict';
  const ROW = 18;
  const CHAR = 6.6;

  function fit(name, width) {
    const room = Math.floor((width - 6) / CHAR);
    if (room < 3) return '';
    return name.length <= room ? name : name.slice(0, room - 1) + '\u2026';
  }

  // svg: the element with class "flame". width(): how wide to draw. report(text): says what was found.
  function attach(svg, width, report) {
    const frames = Array.from(svg.querySelectorAll('g.f')).map((g) => ({
      g: g,
      rect: g.querySelector('rect'),
      text: g.querySelector('text'),
      x: +g.dataset.x,
      w: +g.dataset.w,
      d: +g.dataset.d,
      name: g.dataset.n,
      lower: g.dataset.n.toLowerCase(),
    }));
    if (frames.length === 0) return null;
    let zoom = frames[0];
    let selected = null;

    function inside(a, b) {
      return a.x >= b.x - 1e-9 && a.x + a.w <= b.x + b.w + 1e-9;
    }

    function draw() {
      const total = width();
      const scale = total / zoom.w;
      let depth = 0;
      for (const f of frames) {
        const above = f.d < zoom.d && inside(zoom, f);
        const below = f.d >= zoom.d && inside(f, zoom);
        const x = above ? 0 : (f.x - zoom.x) * scale;
        const w = above ? total : f.w * scale;
        const visible = above || (below && w >= 0.3);
        f.g.classList.toggle('off', !visible);
        f.g.classList.toggle('up', above);
        if (!visible) continue;
        depth = Math.max(depth, f.d + 1);
        f.rect.setAttribute('x', x.toFixed(2));
        f.rect.setAttribute('width', Math.max(w - 0.5, 0.3).toFixed(2));
        f.text.setAttribute('x', (x + 3).toFixed(2));
        f.text.textContent = fit(f.name, w);
      }
      if (!svg.closest('.flame-page')) {
        svg.setAttribute('viewBox', '0 0 ' + total + ' ' + (depth * ROW + 2));
        svg.setAttribute('height', depth * ROW + 2);
      }
    }

    function select(frame) {
      if (selected) selected.g.classList.remove('sel');
      selected = frame;
      if (frame) {
        frame.g.classList.add('sel');
        report(frame.g.querySelector('title').textContent);
      }
    }

    function zoomTo(frame) {
      zoom = frame || frames[0];
      draw();
    }

    // Shares of hits; a hit inside another is not counted twice.
    function search(query) {
      const q = query.trim().toLowerCase();
      let share = 0;
      let covered = -1;
      let hits = 0;
      for (const f of frames) {  // depth first, left to right
        const hit = q !== '' && f.d > 0 && f.lower.includes(q);
        f.g.classList.toggle('hit', hit);
        if (!hit) continue;
        ++hits;
        if (f.x >= covered - 1e-9) {
          share += f.w;
          covered = f.x + f.w;
        }
      }
      report(q === '' ? '' : hits + ' frames match, ' + (share * 100).toFixed(1) + ' % of the time');
      return hits;
    }

    function parent(frame) {
      let best = null;
      for (const f of frames) if (f.d === frame.d - 1 && inside(frame, f)) best = f;
      return best;
    }

    svg.addEventListener('click', (event) => {
      const g = event.target.closest ? event.target.closest('g.f') : null;
      const frame = frames.find((f) => f.g === g);
      if (!frame) return;
      select(frame);
      zoomTo(frame === zoom ? parent(frame) : frame);
    });
    svg.addEventListener('keydown', (event) => {
      const at = selected || zoom;
      const visible = frames.filter((f) => !f.g.classList.contains('off'));
      const row = visible.filter((f) => f.d === at.d).sort((a, b) => a.x - b.x);
      const index = row.indexOf(at);
      let next = null;
      if (event.key === 'ArrowRight') next = row[index + 1];
      else if (event.key === 'ArrowLeft') next = row[index - 1];
      else if (event.key === 'ArrowUp') next = parent(at);
      else if (event.key === 'ArrowDown') {
        next = visible.filter((f) => f.d === at.d + 1 && inside(f, at)).sort((a, b) => b.w - a.w)[0];
      } else if (event.key === 'Enter') zoomTo(at);
      else if (event.key === 'Escape') zoomTo(null);
      else return;
      event.preventDefault();
      if (next) select(next);
    });
    draw();
    return { draw: draw, search: search, zoomTo: zoomTo, reset: () => zoomTo(null) };
  }

  const page = document.documentElement.classList.contains('flame-page') ? document.documentElement : null;
  if (page) {
    const found = page.querySelector('text.found');
    const graph = attach(page.querySelector('svg.flame'), () => 1200, (text) => {
      found.textContent = text.length > 110 ? text.slice(0, 109) + '\u2026' : text;
    });
    window.flatoutFlame = graph;
    window.addEventListener('keydown', (event) => {
      if (!graph || !(event.key === '/' || ((event.ctrlKey || event.metaKey) && event.key === 'f'))) return;
      event.preventDefault();
      const query = window.prompt('Search for a function or file', '');
      if (query !== null) graph.search(query);
    });
  } else {
    window.flatoutFlameAttach = attach;
  }
})();
