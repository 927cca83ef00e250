"""The keys of config.yaml in words: (English title, Chinese title, Chinese explanation). The English explanation is the
key's own description, which also stands in the file."""

from __future__ import annotations

from octavo.app.config.form import forms

KEYS: dict[str, tuple[str, str, str]] = {
    "model.id": (
        "Model",
        "模型",
        "starter（首次启动时下载的小模型）、none、Hugging Face 上的 org/name、org/name:Q4_K_M（GGUF 仓库中的一个文件）"
        "、一个文件夹或一个 .gguf 文件。Windows 路径请用单引号或 /。",
    ),
    "model.revision": ("Revision", "版本", "Hugging Face 模型的分支、标签或提交。提交号请加引号。"),
    "model.folders": ("Model folders", "模型文件夹", "还要到哪些文件夹里找模型。"),
    "model.device": (
        "Device",
        "设备",
        "auto（有 CUDA 显卡就用显卡，否则用 CPU）、cpu、cuda，或用 cuda:N 指定多块显卡中的一块。",
    ),
    "model.dtype": ("Number format", "数值格式", "计算所用的数值格式；auto 按模型和设备选择。"),
    "model.context_length": (
        "Context length",
        "上下文长度",
        "一个对话最多容纳的词元数；auto 取模型自己的长度，并缩短到内存放得下一个完整对话为止。",
    ),
    "model.quantization": (
        "Quantization",
        "量化",
        "加载时把权重转换成的格式；none 保持检查点原样，展开成 16 位更快时则展开；packed 从不展开检查点里"
        "以更少位数保存的权重。docs/quantization.md 有各种格式的比较。",
    ),
    "model.quantize_head": (
        "Quantize the head",
        "量化输出层",
        "输出层也转换：更小更快，但它是模型中受影响最大的部分。",
    ),
    "engine.paged_attention": (
        "Paged attention",
        "分页注意力",
        "开：键和值存放在按需分配的页里，开头相同的对话共用这些页。关：每个对话一开始就占用整段上下文。",
    ),
    "engine.fusion": (
        "Fusion",
        "算子融合",
        "开：使用融合内核（在 CUDA 上还有录制好的计算图）。关：每个运算单独用普通 torch 执行。",
    ),
    "engine.prefix_sharing": (
        "Prefix sharing",
        "前缀共享",
        "开头相同的对话共用开头部分的计算结果。分页注意力关闭时不起作用。",
    ),
    "engine.page_size": ("Page size", "页大小", "一页容纳的词元数。"),
    "engine.kv_cache_dtype": (
        "Cache format",
        "缓存格式",
        "缓存的键和值的数值格式；auto 与模型相同。int8 和 fp8（E4M3）只占 16 位一半的内存，对话可以长一倍或多一倍，"
        "在显卡上长对话的生成也更快；回复会有细微变化。",
    ),
    "engine.kv_memory": (
        "Memory for chats",
        "对话内存",
        "留给键和值的内存：auto、一个大小（“6 GiB”）或空闲内存的一部分（“80%”）。",
    ),
    "engine.swap_memory": ("Swap memory", "交换内存", "页可以移到的主机内存；本版本不移动页，所以只有 auto。"),
    "engine.max_running": ("Replies at once", "同时回复数", "最多同时生成多少条回复。"),
    "engine.queue_limit": ("Queue limit", "排队上限", "最多多少个请求可以排队；再多就会被拒绝。"),
    "engine.prefill_chunk": (
        "Prompt chunk",
        "提示分块",
        "一步最多读入多少提示词元；分块小，正在生成的回复就更流畅。",
    ),
    "engine.scheduler": (
        "Scheduler",
        "调度策略",
        "下一个轮到谁：fcfs（先到先得）或 longest-prefix（与缓存共同部分最长者优先）。",
    ),
    "engine.preemption": ("Preemption", "抢占", "必须让出内存的回复怎么办：recompute 表示以后重新读入它的词元。"),
    "engine.target_gap_ms": (
        "Largest gap",
        "最大间隔",
        "读入别人的提示时，正在生成的回复相邻两个词元之间允许的间隔，单位毫秒。",
    ),
    "engine.remote": ("Remote engine", "远程引擎", "另一台机器上的引擎地址；本版本只有内置引擎。"),
    "speculation.mode": ("Speculation", "推测解码", "off 一次计算一个词元；ngram 猜测回复会像前文那样接下去。"),
    "speculation.draft_model": ("Draft model", "草稿模型", "为 draft 模式猜测词元的小模型；本版本没有。"),
    "speculation.draft_tokens": ("Draft tokens", "草稿词元数", "推测解码打开时，一次预先猜多少个词元。"),
    "sampling.temperature": ("Temperature", "温度", "0 总是取最可能的词元；越高越自由。"),
    "sampling.top_p": ("Top p", "Top p", "保留最可能的词元，直到总概率达到这个值。"),
    "sampling.top_k": ("Top k", "Top k", "保留这么多个最可能的词元；0 表示全部。"),
    "sampling.min_p": ("Min p", "Min p", "保留概率至少达到最可能者这一比例的词元；0 表示全部。"),
    "sampling.repetition_penalty": ("Repetition penalty", "重复惩罚", "大于 1 会降低出现过的词元的概率；1 表示关闭。"),
    "sampling.max_tokens": ("Reply length", "回复长度", "一条回复最多多少词元；不填则写到上下文用完。"),
    "sampling.seed": ("Seed", "随机种子", "种子相同，回复就相同；不填则每次都是新的。"),
    "server.host": ("Address", "监听地址", "服务监听的地址；127.0.0.1 表示只有本机能访问。"),
    "server.port": (
        "Port",
        "端口",
        "监听的端口。如果 7860 被别的程序占用，就用 7870 以内下一个空闲的；在这里另设的端口要么占用成功，要么报错。"
        "0 表示任意空闲端口。",
    ),
    "server.open_browser": ("Open the browser", "打开浏览器", "启动时在浏览器中打开页面（有显示器时）。"),
    "server.api_key": ("Key", "密钥", "客户端必须以 `Authorization: Bearer KEY` 发送这个密钥。"),
    "server.allowed_hosts": ("More host names", "其他主机名", "除本机名称外，服务还响应哪些主机名。"),
    "server.allowed_origins": ("Allowed origins", "允许的网页来源", "还有哪些网页（https://name 形式）可以调用 API。"),
    "app.theme": ("Colours", "配色", "页面的颜色：system、light 或 dark。"),
    "app.language": ("Language", "语言", "页面的语言：auto（跟随浏览器）、en 或 zh-CN。"),
    "app.unload_after_minutes": (
        "Unload when idle",
        "空闲时卸载",
        "这么多分钟没有请求就卸载模型，下一个请求会重新加载它。0 表示从不。",
    ),
    "app.data_folder": (
        "Data folder",
        "数据文件夹",
        "保存对话的文件夹；不填则用通常的位置。环境变量 OCTAVO_DATA_DIR 优先。在页面的设置里移动时，对话会一起移过去。",
    ),
    "app.log_level": ("Log level", "日志级别", "记录多少日志：debug、info、warning 或 error。"),
}


def title(key: str, language: str) -> str:
    """The key's name for people; of a key without words, its own."""
    words = KEYS.get(key)
    if words is None:
        return key.split(".")[1].replace("_", " ").capitalize()
    return words[1] if language == "zh-CN" else words[0]


def about(key: str, language: str) -> str:
    """What the key does."""
    words, form = KEYS.get(key), forms()[key]
    if words is not None and language == "zh-CN":
        return words[2]
    if form.control == "switch":  # the file says true and false, a switch is on or off
        return form.about.replace("true: ", "On: ").replace("false: ", "Off: ")
    return form.about
