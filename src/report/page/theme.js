// Dark or light: as the system has it, or as the button says.
(function () {
  'use strict';
  // Calls changed() after each change of colours.
  window.flatoutTheme = function (changed) {
    const root = document.documentElement;
    const system = matchMedia('(prefers-color-scheme: dark)');
    let stored = null;
    try { stored = localStorage.getItem('flatout-theme'); } catch (e) { /* not allowed for files */ }
    if (stored === 'dark' || stored === 'light') root.setAttribute('data-theme', stored);
    document.getElementById('theme').addEventListener('click', () => {
      const dark = root.getAttribute('data-theme') === 'dark' || (!root.hasAttribute('data-theme') && system.matches);
      root.setAttribute('data-theme', dark ? 'light' : 'dark');
      changed();
      try { localStorage.setItem('flatout-theme', dark ? 'light' : 'dark'); } catch (e) { /* as above */ }
    });
    system.addEventListener('change', changed);
  };
})();
