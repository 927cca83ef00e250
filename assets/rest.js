// While Octavo is closed: what only it could do rests, until it is back. What is read, and the draft, stay usable.

const NEEDS_SERVER = [
  "#octavo-chats :is(.filter, .all, .more-tools, .stop)",
  "#octavo-header :is(.card, .pending) button",
  "#octavo-talk :is(.earlier, .turn .said .tools button, .turn footer button, .turn .notes button)",
  "#octavo-composer :is(.attach, .tune, .model-question button)",
  "#octavo-panel .panel-body :is(button, input, select, textarea)",
].join(", ");

/** Disable what needs the server. */
export function rest() {
  for (const control of document.querySelectorAll(NEEDS_SERVER)) {
    if (control.disabled) continue;
    control.disabled = true;
    control.dataset.rests = "";
  }
}

/** Enable what rest() has disabled. */
export function wake() {
  for (const control of document.querySelectorAll("[data-rests]")) {
    control.disabled = false;
    delete control.dataset.rests;
  }
}
