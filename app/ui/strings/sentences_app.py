"""What the app says of chats, settings and data, in Chinese. Errors are written in English where they arise; the page
finds a sentence here by its form, with names in the places of `{}`."""

ZH_CN: dict[str, str] = {
    # Chats
    "This chat would have {tokens} tokens; the model's context holds {window}, and the chat is set to stop there.": (
        "这个对话将有 {tokens} 个词元，而模型的上下文只有 {window}，并且这个对话设为在此停下。"
    ),
    "Let its oldest turns be left out, or load the model with a larger context.": (
        "可以略去最早的轮次，或用更大的上下文加载模型。"
    ),
    "With this message the prompt has {tokens} tokens; the model's context holds {window}.": (
        "加上这条消息，提示共有 {tokens} 个词元，而模型的上下文只有 {window}。"
    ),
    "Shorten it, take a file away, or load the model with a larger context.": (
        "请缩短内容、去掉一个文件，或用更大的上下文加载模型。"
    ),
    "This chat does not exist or was deleted.": "这个对话不存在，或已被删除。",
    "Start a new one.": "请新建一个。",
    "This chat is still writing a reply.": "这个对话还在写回复。",
    "Stop it or wait for its end.": "请先停止，或等它写完。",
    "This chat has newer turns than this page shows.": "这个对话里有比本页更新的内容。",
    "Reload the page and send again.": "请刷新页面后再发送。",
    "This chat was written with {chats}, but {loaded} is loaded.": (
        "这个对话是用 {chats} 写的，而现在加载的是 {loaded}。"
    ),
    "Choose which of them is to reply.": "请选择由哪个模型回复。",
    "This is no chat that can be read: {reason}.": "这不是可以读取的对话：{reason}。",
    "Choose a file that was exported from Octavo, or ChatGPT's conversations.json.": (
        "请选择从 Octavo 导出的文件，或 ChatGPT 的 conversations.json。"
    ),
    "This is no file of chats that can be read: {reason}.": "这不是可以读取的对话文件：{reason}。",
    "Choose the copy of everything that Octavo's settings download.": "请选择在 Octavo 设置中下载的全部数据的副本。",
    "it is no SQLite database": "它不是 SQLite 数据库",
    "a newer Octavo wrote it": "它是由更新版本的 Octavo 写的",
    "Octavo did not write it": "它不是由 Octavo 写的",
    "it is damaged": "它已损坏",
    "its values are damaged": "它的内容已损坏",
    "This import was given up. Choose the file again.": "这次导入已放弃。请重新选择文件。",
    "{path} could not be written ({reason}).": "无法写入 {path}（{reason}）。",
    "The chats are larger than {size} bytes.": "对话超过 {size} 字节。",
    "it is not a JSON object": "它不是 JSON 对象",
    "it has no messages": "里面没有消息",
    "it is empty": "它是空的",
    "The engine ended without finishing this reply.": "引擎没有写完这条回复就结束了。",
    "Regenerate it.": "请重新生成。",
    "Until the next start, or until another model is loaded, this takes the place of config.yaml: {choice}.": (
        "在下次启动或加载别的模型之前，以下选择代替 config.yaml：{choice}。"
    ),
    "The model could not be loaded:": "模型无法加载：",
    "No model is loaded.": "没有加载模型。",
    "Choose one, then regenerate this reply.": "请先选一个，再重新生成这条回复。",
    "{turns} left out: together they exceed the model's context of {window} tokens (oldest first, a quarter of the "
    "context at a time).": "略去了 {turns}：合起来超过了模型 {window} 个词元的上下文（先略去最早的，每次四分之一）。",
    "The message is empty.": "消息是空的。",
    "Write something first.": "请先写点什么。",
    "Octavo is shutting down.": "Octavo 正在关闭。",
    "Start it again first.": "请先重新启动它。",
    "There is nothing to reply to yet.": "还没有可以回复的内容。",
    "Send a message first.": "请先发送一条消息。",
    "There is no reply to go on with.": "还没有可以继续的回复。",
    "This reply is not saved yet.": "这条回复还没有保存。",
    "A reply of this chat is not saved yet.": "这个对话有一条回复还没有保存。",
    "Chats are being imported.": "正在导入对话。",
    "Delete it when that is done.": "请在导入完成后再删除。",
    "This can no longer be undone.": "已经不能撤销了。",
    "The chat has changed since: reload the page to see it.": "这个对话已经变化：请重新加载页面查看。",
    "Try again in a moment.": "请稍后再试。",
    "This chat was deleted.": "这个对话已被删除。",
    "That turn is not in this chat.": "这一轮不在这个对话里。",
    "Reload the page.": "请刷新页面。",
    "The chats in {path} were written by a newer Octavo (schema {found}, this one knows {wanted}).": (
        "{path} 里的对话是由更新版本的 Octavo 写的（格式 {found}，本版本只认识 {wanted}）。"
    ),
    "Update Octavo, or set OCTAVO_DATA_DIR to another folder.": (
        "请更新 Octavo，或把 OCTAVO_DATA_DIR 设为另一个文件夹。"
    ),
    "Another program is writing to {path}.": "另一个程序正在写入 {path}。",
    "Close it, or try again when it is done.": "请关闭它，或等它写完后再试。",
    "The disk of {path} is full; the chat could not be saved.": "{path} 所在的磁盘已满，对话没有保存。",
    "Free some space.": "请腾出一些空间。",
    "{path} is damaged or not a file of chats ({text}).": "{path} 已损坏，或不是对话文件（{text}）。",
    "Move it away (Octavo then starts with an empty list) or put a backup in its place.": (
        "请把它移走（Octavo 会从空列表开始），或用备份替换它。"
    ),
    "The chats in {path} cannot be used: {text}.": "{path} 里的对话无法使用：{text}。",
    "Check that the folder is there and that you may write to it.": "请确认文件夹存在，并且您有写入权限。",
    "Close Octavo and copy the file yourself.": "请关闭 Octavo，然后自行复制该文件。",
    "Check that there is space and that you may write there.": "请确认那里有空间，并且您有写入权限。",
    "A preset needs a name.": "预设需要一个名称。",
    "Give it one.": "请起个名字。",
    "There is a preset named {name} already.": "已经有名为 {name} 的预设了。",
    "Choose another name.": "请换一个名称。",
    "This preset was deleted.": "这个预设已被删除。",
    "This reply cannot be continued.": "这条回复不能继续写。",
    "A chat can be exported as {forms}, not as {form}.": "对话可以导出为 {forms}，不能导出为 {form}。",
    "chats must be a list.": "chats 必须是列表。",
    "There is no such chat.": "没有这个对话。",
    "A system text can have {most} characters at most.": "系统文本最多 {most} 个字符。",
    "{key} is {value}; it must be {wanted}.": "{key} 是 {value}；应为{wanted}。",
    "a text": "文本",
    "an object": "对象",
    "This file is not there any more.": "这个文件已经不在了。",
    "data must be the file in Base64.": "data 必须是 Base64 编码的文件。",
    "A message can have {most} characters at most.": "一条消息最多 {most} 个字符。",
    "Send it in parts.": "请分几次发送。",
    "That did not work ({error}).": "没有成功（{error}）。",
    "The log has the details.": "详情见日志。",
    # Settings
    "{path} holds no settings; every default is used.": "{path} 里没有设置，全部使用默认值。",
    "line {n}: {problem}": "第 {n} 行：{problem}",
    "line {n} column {m}: {problem}": "第 {n} 行第 {m} 列：{problem}",
    "{key} must be {allowed}, found {value}.": "{key} 应为{allowed}，现在是 {value}。",
    "{key} must be {allowed}, found {value}; did you mean {nearest}?": (
        "{key} 应为{allowed}，现在是 {value}；是不是想写 {nearest}？"
    ),
    "{key} must be {allowed}, found {value} (entry {n}).": "{key} 应为{allowed}，第 {n} 项现在是 {value}。",
    "{key} must not carry a YAML tag, found {tag}.": "{key} 不能带 YAML 标签，现在是 {tag}。",
    "{key} must not hold control characters; in double quotes a backslash begins an escape, so write a Windows path "
    "in single quotes or with /, found {value}.": (
        "{key} 不能含有控制字符（现在是 {value}）。双引号里反斜杠表示转义，Windows 路径请用单引号，或写成 /。"
    ),
    "{key} must not hold a character that was lost on the way; write it anew, found {value}.": (
        "{key} 里有传输中丢失的字符，现在是 {value}；请重新填写。"
    ),
    "{key} cannot be {value}: this version has no {feature}; allowed: {allowed}.": (
        "{key} 不能是 {value}：这个版本没有{feature}；可以是：{allowed}。"
    ),
    "{key} is not a known key; did you mean {nearest}?": "没有 {key} 这个键；是不是想写 {nearest}？",
    "{key} is not a known key; keys of {section} are {names}.": "没有 {key} 这个键；{section} 的键有 {names}。",
    "{key} is not a known key; sections are {names}.": "没有 {key} 这个键；分区有 {names}。",
    "{key} is not a known key.": "没有 {key} 这个键。",
    "{key} is at the wrong level; it belongs under `{section}:` ({full}).": (
        "{key} 的层级不对；它应在 `{section}:` 之下（{full}）。"
    ),
    "{key} is at the wrong level; write `{name}:` indented under `{section}:`.": (
        "{key} 的层级不对；请把 `{name}:` 缩进写在 `{section}:` 之下。"
    ),
    "{key} is a section: put its keys on the lines below it, indented by two spaces; found {value}.": (
        "{key} 是一个分区：它的键应写在下面各行，缩进两个空格；现在是 {value}。"
    ),
    "{key} is empty; give it a value or leave the key out.": "{key} 是空的；请填入值，或去掉这个键。",
    "{key} is longer than {most} characters; take a shorter one.": "{key} 超过 {most} 个字符；请换短一点的。",
    "{key} {host} is no address; use 127.0.0.1, or an address of this machine.": (
        "{key} {host} 不是地址；请用 127.0.0.1，或这台电脑的地址。"
    ),
    "{key} {host} opens Octavo to the network; set server.api_key as well, or use 127.0.0.1.": (
        "{key} {host} 会让网络里的设备访问 Octavo；请同时设置 server.api_key，或用 127.0.0.1。"
    ),
    "is written in a way that Octavo cannot change safely; change it in an editor.": (
        "config.yaml 的写法 Octavo 无法安全修改，请用编辑器修改。"
    ),
    "cannot be written ({error}).": "config.yaml 无法写入（{error}）。",
    "cannot be read ({error}).": "config.yaml 无法读取（{error}）。",
    "must hold sections such as `model:`, found {kind}.": "config.yaml 应由 `model:` 这样的分区组成，现在是{kind}。",
    "is not valid YAML ({error}).": "config.yaml 不是有效的 YAML（{error}）。",
    "is nested too deep; settings are sections with keys below them.": "config.yaml 嵌套太深；设置只有分区和其下的键。",
    "holds a number or a date that cannot be read; shorten it or put it in quotes.": (
        "config.yaml 里有无法读取的数字或日期；请缩短，或加上引号。"
    ),
    "the character {character} is not allowed in YAML; remove it.": "YAML 里不允许字符 {character}；请删除。",
    "a key must be a word, found {key}.": "键必须是一个词，现在是 {key}。",
    "true or false": " true 或 false",
    "a whole number": "整数",
    "a number": "数字",
    "auto or a whole number": " auto 或整数",
    'text (put it in quotes: "...")': '文本（请加引号："..."）',
    "a size that a computer can have": "电脑能有的大小",
    "a list": "列表",
    "a whole number from {low} to {high}": " {low} 到 {high} 的整数",
    "a whole number from {low}": "不小于 {low} 的整数",
    "a number from {low} to {high}": " {low} 到 {high} 的数字",
    "a number from {low}": "不小于 {low} 的数字",
    "a number above {low} to {high}": "大于 {low} 且不大于 {high} 的数字",
    "a number above {low}": "大于 {low} 的数字",
    "{allowed} or null": "{allowed}，或 null",
    "nothing (null)": "空（null）",
    "keys of its own": "下一级的键",
    "something else": "别的内容",
    "the date {date} (put it in quotes)": "日期 {date}（请加引号）",
    # The panels and the data
    "This can only be done on the machine that Octavo runs on.": "只能在运行 Octavo 的电脑上做这件事。",
    "This Octavo cannot restart itself. Stop it and start it again.": "这个 Octavo 不能自行重启。请关闭后再启动。",
    "This Octavo cannot be ended from here. Stop it where it was started.": (
        "这个 Octavo 不能从这里关闭。请在启动它的地方关闭。"
    ),
    'Send {"changes": {"section.key": value}}.': '请发送 {"changes": {"section.key": value}}。',
    "There is no such action.": "没有这个操作。",
    "This model is loaded.": "这个模型正在使用。",
    "There is no folder {path}.": "没有文件夹 {path}。",
    "Write its whole path.": "请写完整的路径。",
    "id must name a model.": "id 必须是模型的名称。",
    "quantization is one of {names}.": "quantization 可以是 {names}。",
    "kind is one of any, safetensors, gguf.": "kind 可以是 any、safetensors、gguf。",
    "The variable OCTAVO_DATA_DIR says where the data is; change it there.": (
        "数据的位置由环境变量 OCTAVO_DATA_DIR 决定，请在那里修改。"
    ),
    "Send what to delete: a list of {names}.": "请发送要删除的内容：{names} 的列表。",
    "{path} is no complete path.": "{path} 不是完整的路径。",
    "Begin with the drive or with /.": "请以盘符或 / 开头。",
    "The data is in this folder already.": "数据已经在这个文件夹里了。",
    "{path} holds chats of its own.": "{path} 里已有别的对话。",
    "Choose another folder.": "请换一个文件夹。",
    "{path} has too little space: {free} bytes are free, {needed} are needed.": (
        "{path} 空间不足：可用 {free} 字节，需要 {needed} 字节。"
    ),
    "{path} cannot be written ({error}).": "{path} 无法写入（{error}）。",
    "The copy of {path} is not whole ({error}).": "{path} 的副本不完整（{error}）。",
    "{path} could not be copied to {target} ({error}).": "{path} 无法复制到 {target}（{error}）。",
    "The chats were moved from {old} to {data}.": "对话已从 {old} 移到 {data}。",
    "{path} could not be deleted; delete it yourself.": "{path} 无法删除，请自行删除。",
    "The copy could not be written to {target} ({error}).": "副本无法写入 {target}（{error}）。",
}
