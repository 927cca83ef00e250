"""The settings panel."""

EN: dict[str, str] = {
    "settings.from.default": "default",
    "settings.from.file": "config.yaml",
    "settings.from.environment": "environment",
    "settings.from.flag": "command line",
}

ZH_CN: dict[str, str] = {
    "settings.from.default": "默认",
    "settings.from.file": "config.yaml",
    "settings.from.environment": "环境变量",
    "settings.from.flag": "命令行",
}
