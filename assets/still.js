// Gradio's sign of loading goes on asking for frames after it is gone: sixty a second, in every tab, for as long as the
// tab is open. Nothing of Gradio moves on this page, so what asks again and again while it is put together is given no
// frames once it is ready. This runs before Gradio, some of which keeps the function that it finds here.

(() => {
  const own = window.requestAnimationFrame;
  const asked = new WeakMap(); // callback: how often it asked while the page was put together
  let ready = false;

  const afterwards = (callback) => (asked.get(callback) > 1 ? 0 : own.call(window, callback));

  window.requestAnimationFrame = (callback) => {
    if (ready) return 0; // only who kept this function gets here: the page's own scripts find the other one
    asked.set(callback, (asked.get(callback) ?? 0) + 1);
    return own.call(window, callback);
  };

  document.addEventListener("octavo-ready", () => {
    ready = true;
    window.requestAnimationFrame = afterwards;
  });
})();
