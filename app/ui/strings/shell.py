"""The frame: navigation, colours, connection."""

EN: dict[str, str] = {
    "nav": "Octavo",
    "nav.chats": "Chats",
    "nav.models": "Models",
    "nav.settings": "Settings",
    "nav.monitor": "Monitor",
    "panel.close": "Close this panel",
    "panel.widen": "Use the whole width",
    "panel.narrow": "Beside the conversation",
    "panel.failed": "This panel could not be opened. Check that Octavo still runs, then try again.",
    "toast.close": "Dismiss",
    "dialog.no": "Cancel",
    "unreachable": "Octavo is not reachable right now.",
    "offline": "Reconnecting…",
    "theme.system": "Colours: as the system",
    "theme.light": "Colours: light",
    "theme.dark": "Colours: dark",
}

ZH_CN: dict[str, str] = {
    "nav": "Octavo",
    "nav.chats": "对话",
    "nav.models": "模型",
    "nav.settings": "设置",
    "nav.monitor": "监控",
    "panel.close": "关闭面板",
    "panel.widen": "占满宽度",
    "panel.narrow": "放到对话旁边",
    "panel.failed": "面板打不开。请确认 Octavo 仍在运行，然后再试一次。",
    "toast.close": "知道了",
    "dialog.no": "取消",
    "unreachable": "暂时连接不上 Octavo。",
    "offline": "正在重新连接…",
    "theme.system": "颜色：跟随系统",
    "theme.light": "颜色：浅色",
    "theme.dark": "颜色：深色",
}
