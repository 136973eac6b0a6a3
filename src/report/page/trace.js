// The timeline of traces. What is drawn comes in levels (src/model/trace_picture.h): the first is of
// the whole trace with short slices joined to blocks, others look closer at a part of it.
(function () {
  'use strict';
  const ROW = 16;
  const LEAST = 20;  // ns on the whole width
  const pictures = JSON.parse(document.getElementById('data').textContent);
  const root = document.documentElement;
  const host = document.getElementById('view');
  const info = document.getElementById('slice-info');
  const first = Math.min(...pictures.map((p) => p.offset));
  const length = Math.max(...pictures.map((p) => p.offset + p.length), first + 1) - first;
  let from = 0;  // of what is in view, in ns
  let to = length;
  let wanted = '';  // searched for
  let tracks = [];

  function css(name) { return getComputedStyle(root).getPropertyValue('--' + name).trim(); }
  function el(tag, parent, css, text) {
    const node = document.createElement(tag);
    if (css) node.className = css;
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  }
  function time(ns) {
    const a = Math.abs(ns);
    if (a < 1e3) return Math.round(ns) + ' ns';
    if (a < 1e6) return +(ns / 1e3).toPrecision(4) + ' µs';
    if (a < 1e9) return +(ns / 1e6).toPrecision(4) + ' ms';
    return +(ns / 1e9).toPrecision(5) + ' s';
  }

  // A row as it came: [gap since the last, length, (-count,) name, …] in units from the level's begin.
  function unpack(row, level, shift) {
    const begin = [], end = [], name = [], count = [];
    let at = 0;
    for (let i = 0; i < row.length;) {
      at += row[i++];
      begin.push(shift + level.begin + at * level.unit);
      at += row[i++];
      end.push(shift + level.begin + at * level.unit);
      let slices = 1;
      if (row[i] < 0) slices = -row[i++];
      count.push(slices);
      name.push(row[i++]);
    }
    return { begin: Float64Array.from(begin), end: Float64Array.from(end), name: Int32Array.from(name), count: Int32Array.from(count) };
  }

  // The finest level that holds all that is in view.
  function levelOf(picture) {
    const a = from - (picture.offset - first), b = to - (picture.offset - first);
    let best = 0;
    picture.levels.forEach((level, i) => {
      const holds = level.begin <= Math.max(a, 0) && level.end >= Math.min(b, picture.length);
      if (holds && level.resolution < picture.levels[best].resolution) best = i;
    });
    return best;
  }

  const IDLE = {
    'input wait': 'input_wait', 'waits for the host': 'backward', 'between kernels': 'other', 'unknown': 'c3',
    'waits for the host, which waited for the device': 'sync',
  };
  function hue(text) {
    let h = 2166136261;
    for (let i = 0; i < text.length; ++i) h = Math.imul(h ^ text.charCodeAt(i), 16777619);
    return (h >>> 0) % 360;
  }
  function colours(picture) {
    const dark = css('paper') < '#5';
    return picture.names.map((name) => IDLE[name] ? css(IDLE[name]) : 'hsl(' + hue(name.replace(/[#\d]+/g, '')) + (dark ? ' 45% 42%)' : ' 55% 72%)'));
  }

  // The first slice that ends after t.
  function seek(row, t) {
    let low = 0, high = row.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.end[middle] > t) high = middle; else low = middle + 1;
    }
    return low;
  }

  function rowsOf(track) {
    const level = levelOf(track.picture);
    if (!track.levels[level]) {
      const all = track.picture.levels[level];
      track.levels[level] = all.tracks[track.index].map((row) => unpack(row, all, track.picture.offset - first));
    }
    return track.levels[level];
  }

  function size(canvas, height) {
    const ratio = window.devicePixelRatio || 1;
    const width = host.clientWidth;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = height + 'px';
    }
    const pen = canvas.getContext('2d');
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  }

  function fitting(pen, text, width) {
    const fits = Math.floor(width / 5);  // none is wider on average
    if (text.length <= fits && pen.measureText(text).width <= width) return text;
    let end = Math.min(text.length, fits);
    while (end > 1 && pen.measureText(text.slice(0, end) + '…').width > width) --end;
    return text.slice(0, end) + '…';
  }

  function drawTrack(track) {
    const rows = rowsOf(track);
    const height = (track.folded ? 1 : track.depth) * ROW;
    const pen = size(track.canvas, height);
    const width = host.clientWidth, scale = width / (to - from);
    pen.font = '11px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    const fills = track.picture.fills, names = track.picture.names, hit = track.picture.hit;
    for (let r = 0; r < rows.length && (r === 0 || !track.folded); ++r) {
      const row = rows[r];
      let drawn = -1;
      for (let i = seek(row, from); i < row.begin.length && row.begin[i] < to; ++i) {
        const x = Math.max((row.begin[i] - from) * scale, 0);
        const right = Math.min((row.end[i] - from) * scale, width);
        if (right < drawn + 0.5) continue;
        const wide = Math.max(right - x, 0.7);
        pen.globalAlpha = hit && !hit[row.name[i]] ? 0.2 : row.count[i] > 1 ? 0.65 : 1;
        pen.fillStyle = fills[row.name[i]];
        pen.fillRect(x, r * ROW + 1, wide > 3 ? wide - 0.6 : wide, ROW - 2);
        drawn = x + wide;
        if (wide < 34) continue;
        const text = row.count[i] > 1 ? row.count[i] + ' slices' : names[row.name[i]];
        pen.fillStyle = track.ink;
        pen.fillText(fitting(pen, text, wide - 6), x + 3, r * ROW + ROW / 2 + 0.5);
      }
    }
    pen.globalAlpha = 1;
  }

  const axis = el('canvas', el('div', host, 'axis'));
  function drawAxis() {
    const pen = size(axis, 22);
    const width = host.clientWidth, span = to - from;
    const raw = span / Math.max(width / 120, 1);
    const base = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = Math.max([1, 2, 5, 10].map((m) => m * base).find((s) => s >= raw), 1);
    pen.font = '11px system-ui, sans-serif';
    pen.fillStyle = css('muted');
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const x = (t - from) / span * width;
      pen.fillRect(x, 15, 1, 7);
      if (x < width - 50) pen.fillText(time(t), x + 3, 11);
    }
  }

  let due = false;
  function draw() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      drawAxis();
      for (const track of tracks) {
        const box = track.canvas.getBoundingClientRect();
        if (box.bottom > -200 && box.top < window.innerHeight + 200) drawTrack(track);
      }
    });
  }

  function show(a, b) {
    const span = Math.min(Math.max(b - a, LEAST), length);
    const middle = (a + b) / 2;
    from = Math.min(Math.max(middle - span / 2, 0), length - span);
    to = from + span;
    draw();
  }
  function zoom(factor, at) {
    const t = at === undefined ? (from + to) / 2 : at;
    show(t - (t - from) * factor, t + (to - t) * factor);
  }
  const timeAt = (event) => from + (event.clientX - host.getBoundingClientRect().left) / host.clientWidth * (to - from);

  function sliceAt(event) {
    const track = tracks.find((t) => t.canvas === event.target);
    if (!track) return null;
    const rows = rowsOf(track);
    const r = Math.floor((event.clientY - track.canvas.getBoundingClientRect().top) / ROW);
    if (r >= rows.length) return null;
    const slack = (to - from) / host.clientWidth;
    const t = timeAt(event), row = rows[r], i = seek(row, t - slack);
    if (i >= row.begin.length || row.begin[i] > t + slack) return null;
    return { track: track, begin: row.begin[i], end: row.end[i], name: track.picture.names[row.name[i]], count: row.count[i] };
  }
  function tell(slice) {
    info.textContent = '';
    if (!slice) { info.textContent = '\u00a0'; return; }
    const length = time(slice.end - slice.begin) + ' from ' + time(slice.begin);
    if (slice.count > 1) {
      info.append(slice.count + ' slices within ' + length + ', the longest: ');
      el('b', info, '', slice.name);
    } else {
      el('b', info, '', slice.name);
      info.append(' ' + length);
    }
  }

  function build() {
    for (const picture of pictures) {
      picture.tracks.forEach((t, index) => {
        const box = el('div', host, 'track');
        const button = el('button', box);
        button.type = 'button';
        const rank = picture.rank >= 0 && pictures.length > 1 ? 'rank ' + picture.rank + ', ' : '';
        el('b', button, '', t.thread);
        el('span', button, '', rank + t.process + ', ' + t.slices + (t.kind === 'idle' ? ' gaps' : ' slices'));
        const depth = Math.max(1, ...picture.levels.map((level) => level.tracks[index].length));
        const track = { picture: picture, index: index, canvas: el('canvas', box), levels: [], depth: depth, folded: false };
        const fold = (folded) => {
          track.folded = folded;
          box.classList.toggle('folded', folded);
          button.setAttribute('aria-expanded', String(!folded));
          track.canvas.style.height = (folded ? 1 : depth) * ROW + 'px';
        };
        button.addEventListener('click', () => { fold(!track.folded); draw(); });
        fold(t.kind === 'thread' && index > 12);
        tracks.push(track);
      });
      for (const place of picture.places) {
        const option = el('option', document.getElementById('place'), '', (pictures.length > 1 ? 'rank ' + picture.rank + ': ' : '') + place.label);
        const shift = picture.offset - first;
        option.value = (place.begin + shift) + ' ' + (place.end + shift);
      }
    }
    const notes = [];
    const coarse = Math.max(...pictures.map((p) => p.levels.length ? p.levels[0].resolution : 0));
    if (coarse > 0) {
      notes.push('Slices shorter than ' + time(coarse) + ' are joined to blocks, but for the places of the list and some steps from the middle. ' +
        'flatout trace slice cuts another window out of the trace to look at.');
    }
    const hidden = pictures.reduce((sum, p) => sum + p.hidden_tracks, 0);
    if (hidden > 0) notes.push(hidden + ' threads with ' + pictures.reduce((sum, p) => sum + p.hidden_slices, 0) + ' slices are left out.');
    document.getElementById('view-note').textContent = notes.join(' ');
  }

  function paint() {
    for (const picture of pictures) picture.fills = colours(picture);
    for (const track of tracks) track.ink = css('ink');
    draw();
  }

  function listen() {
    let grip = null;
    host.addEventListener('pointerdown', (event) => {
      if (event.target.tagName !== 'CANVAS' || event.button !== 0) return;
      grip = { x: event.clientX, from: from, to: to };
    });
    window.addEventListener('pointermove', (event) => {
      if (!grip) { if (host.contains(event.target)) tell(sliceAt(event)); return; }
      host.classList.add('moves');
      const by = (grip.x - event.clientX) / host.clientWidth * (grip.to - grip.from);
      show(grip.from + by, grip.to + by);
    });
    for (const name of ['pointerup', 'pointercancel']) {
      window.addEventListener(name, () => { grip = null; host.classList.remove('moves'); });
    }
    host.addEventListener('dblclick', (event) => {
      const slice = sliceAt(event);
      if (!slice) return;
      const margin = (slice.end - slice.begin) / 8;
      show(slice.begin - margin, slice.end + margin);
    });
    host.addEventListener('wheel', (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoom(Math.exp(Math.max(-100, Math.min(100, event.deltaY)) / 150), timeAt(event));
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        const by = event.deltaX / host.clientWidth * (to - from);
        show(from + by, to + by);
      }
    }, { passive: false });
    host.addEventListener('keydown', (event) => {
      const span = to - from;
      const keys = {
        w: () => zoom(0.6), s: () => zoom(1 / 0.6), a: () => show(from - span / 5, to - span / 5), d: () => show(from + span / 5, to + span / 5),
        ArrowLeft: () => show(from - span / 5, to - span / 5), ArrowRight: () => show(from + span / 5, to + span / 5),
        '+': () => zoom(0.6), '-': () => zoom(1 / 0.6), 0: () => show(0, length),
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    document.getElementById('zoom-in').addEventListener('click', () => zoom(0.5));
    document.getElementById('zoom-out').addEventListener('click', () => zoom(2));
    document.getElementById('place').addEventListener('change', (event) => {
      const place = event.target.value.split(' ').map(Number);
      if (place.length < 2) { show(0, length); return; }
      const margin = Math.max((place[1] - place[0]) / 5, 1);
      show(place[0] - margin, place[1] + margin);
    });
    document.getElementById('search').addEventListener('input', (event) => {
      wanted = event.target.value.toLowerCase();
      for (const picture of pictures) {
        picture.hit = wanted ? picture.names.map((name) => name.toLowerCase().includes(wanted)) : null;
      }
      draw();
    });
    window.addEventListener('scroll', draw, { passive: true });
    new ResizeObserver(draw).observe(host);
  }

  build();
  listen();
  window.flatoutTheme(paint);
  paint();
  root.setAttribute('data-ready', 'true');
})();
