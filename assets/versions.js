// ‹ 2/3 ›: which version of a turn is shown, and the way to the others.

import { h, iconButton } from "./dom.js";
import { t } from "./words.js";

export class Versions {
  /** `turn(step)` goes to the version before (-1) or after (1). */
  constructor(turn) {
    this.before = iconButton("left", t("versions.before"), () => turn(-1));
    this.after = iconButton("right", t("versions.after"), () => turn(1));
    this.count = h("span", {});
    this.element = h("div", { class: "versions", role: "group", "aria-label": t("versions"), hidden: true }, this.before, this.count, this.after);
  }

  show(version, versions) {
    this.element.hidden = !(versions > 1);
    this.count.textContent = `${version}/${versions}`;
    this.count.setAttribute("aria-label", t("versions.count", { version, versions }));
    this.before.disabled = version <= 1;
    this.after.disabled = version >= versions;
  }

  /** After a step: the same arrow again, or the other where this was the last one. */
  focus(step) {
    const [same, other] = step < 0 ? [this.before, this.after] : [this.after, this.before];
    (same.disabled ? other : same).focus({ preventScroll: true });
  }
}
