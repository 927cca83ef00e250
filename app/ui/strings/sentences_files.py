"""What is said of model files that are broken, in Chinese: found by its form, as the other sentences are."""

ZH_CN: dict[str, str] = {
    "The file is damaged or incomplete; fetch it again.": "文件已损坏或不完整；请重新获取。",
    # GGUF
    "{file} is cut off: it has {size} bytes, a GGUF header has at least 24.": (
        "{file} 不完整：它只有 {size} 字节，GGUF 文件头至少有 24 字节。"
    ),
    "{file} has the metadata key {key} twice.": "{file} 里的元数据键 {key} 出现了两次。",
    "{file} claims {n} metadata entries and {m} tensors, more than {size} bytes can hold.": (
        "{file} 声称有 {n} 条元数据和 {m} 个张量，{size} 字节放不下。"
    ),
    "{file} is cut off in its header: {what} ends at byte {end}, the file has {size}.": (
        "{file} 的文件头不完整：{what}到第 {end} 字节才结束，而文件只有 {size} 字节。"
    ),
    "{file} has a metadata key that is not UTF-8 ({key}).": "{file} 里有一个元数据键不是 UTF-8（{key}）。",
    "{file} has a value of the unknown type {kind} under {key}.": "{file} 的 {key} 下有一个未知类型 {kind} 的值。",
    "{file} nests arrays deeper than {n} under {key}.": "{file} 的 {key} 下数组嵌套超过 {n} 层。",
    "{file} claims {n} arrays under {key}, more than it can hold.": "{file} 声称 {key} 下有 {n} 个数组，文件放不下。",
    "{file} has an array of the unknown type {kind} under {key}.": "{file} 的 {key} 下有一个未知类型 {kind} 的数组。",
    "{file} claims {n} strings under {key}, more than it can hold.": (
        "{file} 声称 {key} 下有 {n} 个字符串，文件放不下。"
    ),
    "{file} is cut off in its header: the list {key} ends past the file's {size} bytes.": (
        "{file} 的文件头不完整：列表 {key} 超出了文件的 {size} 字节。"
    ),
    "{file} has general.alignment {n}, which is not a power of two.": (
        "{file} 的 general.alignment 是 {n}，不是二的幂。"
    ),
    "{file} describes the tensor {name} twice.": "{file} 把张量 {name} 描述了两次。",
    "{file} puts {name} at {place}, which is no multiple of {n}.": "{file} 把 {name} 放在 {place}，不是 {n} 的倍数。",
    "{file} has the tensors {name} and {other} overlap.": "{file} 里的张量 {name} 与 {other} 重叠。",
    "{file} has a tensor name that is not UTF-8 ({name}).": "{file} 里有一个张量名不是 UTF-8（{name}）。",
    "{file} gives {name} {n} dimensions.": "{file} 给 {name} 写了 {n} 个维度。",
    "{file} stores {name} in the unknown type {kind}.": "{file} 用未知类型 {kind} 存放 {name}。",
    "{file} gives {name} the shape {shape}, which {kind} blocks of {n} cannot fill.": (
        "{file} 给 {name} 写的形状是 {shape}，每块 {n} 个的 {kind} 块无法填满。"
    ),
    "{file} is cut off: {name} ends at byte {end}, the file has {size}.": (
        "{file} 不完整：{name} 到第 {end} 字节才结束，而文件只有 {size} 字节。"
    ),
    "a number": "一个数",
    "a tensor's name": "一个张量名",
    "the name of metadata entry {n}": "第 {n} 条元数据的名称",
    "the value of {key}": "{key} 的值",
    "the array {key}": "数组 {key}",
    # Safetensors
    "{file} is cut off: it has {size} bytes, a safetensors file has at least 8.": (
        "{file} 不完整：它只有 {size} 字节，safetensors 文件至少有 8 字节。"
    ),
    "{file} is no safetensors file: its header would have {size} bytes.": (
        "{file} 不是 safetensors 文件：照它写的，文件头会有 {size} 字节。"
    ),
    "{file} is cut off in its header: expected at least {n} bytes, found {size}.": (
        "{file} 的文件头不完整：至少应有 {n} 字节，实际只有 {size}。"
    ),
    "{file} has {name} twice in its header.": "{file} 的文件头里 {name} 出现了两次。",
    "{file} has a header that is not valid JSON ({error}).": "{file} 的文件头不是有效的 JSON（{error}）。",
    "{file} has a header that is not a JSON object.": "{file} 的文件头不是 JSON 对象。",
    "{file} describes {name} by something that is not an object.": "{file} 里对 {name} 的描述不是对象。",
    "{file} gives {name} the shape {shape}.": "{file} 给 {name} 写的形状是 {shape}。",
    "{file} gives {name} the byte range {range}.": "{file} 给 {name} 写的字节范围是 {range}。",
    "{file} gives {name} {n} bytes, but {kind} {shape} takes {size}.": (
        "{file} 给 {name} 写了 {n} 字节，而 {kind} {shape} 需要 {size} 字节。"
    ),
    "{file} has {name} overlap {other}.": "{file} 里的 {name} 与 {other} 重叠。",
    "{file} has {n} bytes before {name} that belong to no tensor.": "{file} 在 {name} 之前有 {n} 字节不属于任何张量。",
    "{file} is cut off: expected {n} bytes, found {size}; {name} is not whole.": (
        "{file} 不完整：应有 {n} 字节，实际只有 {size}；{name} 不全。"
    ),
    "{file} has {size} bytes where its header accounts for {n}.": "{file} 有 {size} 字节，而文件头只说明了 {n} 字节。",
}
