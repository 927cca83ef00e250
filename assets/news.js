// What happened at the last start: the app restarted itself, the chats were moved. Told once in a tab.

import { toast } from "./dialog.js";
import { t, timeOfDay, worded } from "./words.js";

export function tellOnce({ kind, at, text }) {
  const name = `octavo-told-${kind}-${at ?? text}`;
  if (sessionStorage.getItem(name)) return;
  sessionStorage.setItem(name, "yes");
  if (kind === "asked") toast(t("news.asked"));
  else toast(worded(text) ?? t("news.gpu", { time: timeOfDay(at) }), { keep: true });
}
