"""The monitor panel."""

EN: dict[str, str] = {
    "monitor.running": "Writing",
    "monitor.waiting": "Waiting",
    "monitor.free": "Pages free",
}

ZH_CN: dict[str, str] = {
    "monitor.running": "正在回复",
    "monitor.waiting": "排队中",
    "monitor.free": "空闲页",
}
