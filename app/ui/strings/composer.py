"""Where the user writes."""

EN: dict[str, str] = {
    "composer.label": "Message",
    "composer.placeholder": "Message…",
    "composer.send": "Send",
    "composer.stop": "Stop",
    "composer.busy": "A reply is being written. Stop it or wait for its end.",
    "composer.offline": "Octavo is not reachable right now. Your text stays here.",
    "composer.hint": "Enter sends · Shift+Enter breaks the line",
}

ZH_CN: dict[str, str] = {
    "composer.label": "消息",
    "composer.placeholder": "输入消息…",
    "composer.send": "发送",
    "composer.stop": "停止",
    "composer.busy": "正在回复，请先停止或等它写完。",
    "composer.offline": "暂时连接不上 Octavo，你写的内容会留在这里。",
    "composer.hint": "Enter 发送 · Shift+Enter 换行",
}
