"""What finding, fetching and loading models can say, in Chinese (see `sentences_app`)."""

ZH_CN: dict[str, str] = {
    "{place} could not be deleted ({error}).": "{place} 无法删除（{error}）。",
    "{repository}:{variant} could not be deleted ({error}).": "{repository}:{variant} 无法删除（{error}）。",
    "Unload the model and try again.": "请先卸载模型再试。",
    "The starter model is not in Octavo's cache.": "入门模型不在 Octavo 的缓存里。",
    "{model} is not in the Hugging Face cache.": "{model} 不在 Hugging Face 缓存里。",
    "{repository}:{variant} is not in the Hugging Face cache.": "{repository}:{variant} 不在 Hugging Face 缓存里。",
    "`octavo models list` shows what is; files of your own you delete yourself.": (
        "`octavo models list` 会列出缓存里的模型；您自己的文件请自行删除。"
    ),
    "This download is not in the list any more.": "这个下载已不在列表里。",
    "Start it again.": "请重新开始。",
    "The disk that holds {folder} is full{figures}.": "{folder} 所在的磁盘已满{figures}。",
    "Free some space and try again.": "请腾出一些空间再试。",
    "The download was cancelled.": "下载已取消。",
    "Loading was cancelled.": "加载已取消。",
    "Loading failed unexpectedly ({error}).": "加载意外失败（{error}）。",
    "The config.json of {model} is not valid JSON ({error}).": "{model} 的 config.json 不是有效的 JSON（{error}）。",
    "The config.json of {model} holds no settings.": "{model} 的 config.json 里没有设置。",
    "{model} is quantized already.": "{model} 已经量化过了。",
    "Set model.quantization to none.": "请把 model.quantization 设为 none。",
    "{model} cannot be looked at.": "无法查看 {model}。",
    "The Hugging Face hub cannot be reached.{detail}": "无法连接 Hugging Face。{detail}",
    "Check the network and try again.": "请检查网络后再试。",
    "HF_HUB_OFFLINE is set, so nothing is downloaded.{detail}": "设置了 HF_HUB_OFFLINE，因此不会下载任何内容。{detail}",
    "HF_HUB_OFFLINE is set, so nothing is downloaded.": "设置了 HF_HUB_OFFLINE，因此不会下载任何内容。",
    "The Hugging Face hub cannot be reached.": "无法连接 Hugging Face。",
    "Unset it to download.": "要下载，请取消这个变量。",
    "The Hugging Face hub refused the token that is set.": "Hugging Face 拒绝了现在的令牌。",
    "Set HF_TOKEN to a valid read token, or enter one on the page under Models.": (
        "请把 HF_TOKEN 设为有效的读取令牌，或在“模型”页输入一个。"
    ),
    "The token that is set has no access to {model} yet.": "现在的令牌还没有 {model} 的访问权限。",
    "Accept the terms on the model's Hugging Face page and wait until access is granted.": (
        "请在该模型的 Hugging Face 页面上接受条款，并等待批准。"
    ),
    "{model} has no revision {revision}.": "{model} 没有版本 {revision}。",
    "Check model.revision.": "请检查 model.revision。",
    "There is no model {model} on the Hugging Face hub, or it is private.": (
        "Hugging Face 上没有模型 {model}，或者它是私有的。"
    ),
    "Check the name; for a private model set HF_TOKEN to a token that may read it.": (
        "请检查名称；私有模型需要把 HF_TOKEN 设为有读取权限的令牌。"
    ),
    "The Hugging Face hub cannot be reached for {model}.": "无法连接 Hugging Face 获取 {model}。",
    "Check the network.": "请检查网络。",
    "{model} is not a name the Hugging Face hub can have.": "{model} 不是 Hugging Face 上可能有的名称。",
    "Write it as org/name.": "请写成 组织/名称。",
    "The connection for {model} broke ({error}).": "下载 {model} 的连接中断了（{error}）。",
    "The Hugging Face hub asks for a pause (429).": "Hugging Face 要求暂停一会儿（429）。",
    "Try again in some minutes.": "请过几分钟再试。",
    "The Hugging Face hub answered {status} for {model}.": "Hugging Face 对 {model} 的回应是 {status}。",
    "The Hugging Face hub answered {status}.": "Hugging Face 的回应是 {status}。",
    "Try again later.": "请稍后再试。",
    "{path} cannot be written: its {n} characters are too many for this system.": (
        "{path} 无法写入：路径有 {n} 个字符，超出了系统的限制。"
    ),
    "Set HF_HOME to a folder with a short path; some systems allow only 260 characters.": (
        "请把 HF_HOME 设为路径较短的文件夹；有些系统只允许 260 个字符。"
    ),
    "Downloading {model} failed ({error}).": "下载 {model} 失败（{error}）。",
    "Try again; it goes on from there.": "请再试一次，会从中断处继续。",
    "Access to {model} must be granted on its Hugging Face page.": (
        "{model} 需要在它的 Hugging Face 页面上申请访问权限。"
    ),
    "Accept the terms there, then set the environment variable HF_TOKEN to a read token, or enter one on the page "
    "under Models.": "请在那里接受条款，再把环境变量 HF_TOKEN 设为读取令牌，或在“模型”页输入一个。",
    "The header of {file} of {model} cannot be read.": "无法读取 {model} 的 {file} 的文件头。",
    "Choose another file.": "请换一个文件。",
    "{model} has no GGUF file {variant}.": "{model} 没有 GGUF 文件 {variant}。",
    "It has: {variants}.": "它有：{variants}。",
    "It has no GGUF files at all.": "它根本没有 GGUF 文件。",
    "{model} has several GGUF files: {variants}.": "{model} 有几个 GGUF 文件：{variants}。",
    "Name one, for example {model}:{variant}.": "请指明一个，例如 {model}:{variant}。",
    "{model} has only pickled weights, which could run code when read.": (
        "{model} 只有 pickle 格式的权重，读取时可能会运行代码。"
    ),
    "Choose a repository with safetensors or GGUF files.": "请选择带有 safetensors 或 GGUF 文件的仓库。",
    "{model} has no safetensors or GGUF weights.": "{model} 没有 safetensors 或 GGUF 权重。",
    "Choose another model.": "请换一个模型。",
    "The model folder {path} is not complete: {files} missing.": "模型文件夹 {path} 不完整，缺少：{files}。",
    "Copy or download the missing files.": "请复制或下载缺少的文件。",
    "{path} holds several models: {files}.": "{path} 里有几个模型：{files}。",
    "Name one of them, for example {file}.": "请指明其中一个，例如 {file}。",
    "{path} holds {what}.": "{path} 里有 {what}。",
    "Name a folder with safetensors or a .gguf file.": "请指明带有 safetensors 的文件夹，或 .gguf 文件。",
    "model.id is none: no model is chosen.": "model.id 是 none：没有选择模型。",
    "Choose one on the page or in config.yaml.": "请在页面上或 config.yaml 里选择一个。",
    "The starter is not on disk.": "入门模型不在磁盘上。",
    "Fetch it: octavo models pull starter": "获取它：octavo models pull starter",
    "Fetch it: octavo models pull {model}": "获取它：octavo models pull {model}",
    "There is no model {model}.": "没有模型 {model}。",
    "Write starter, org/name, org/name:Q4_K_M, a folder (./name), or a .gguf file.": (
        "请写 starter、组织/名称、组织/名称:Q4_K_M、文件夹（./name）或 .gguf 文件。"
    ),
    "{path} is not a .gguf file.": "{path} 不是 .gguf 文件。",
    "Name a .gguf file or a folder with safetensors.": "请指明 .gguf 文件，或带有 safetensors 的文件夹。",
    "There is no folder or file {path}.": "没有文件夹或文件 {path}。",
    "Check how the path is written.": "请检查路径的写法。",
    "{path} cannot be read ({error}).": "{path} 无法读取（{error}）。",
    "Check its permissions; some systems allow only 260 characters in a path.": (
        "请检查它的权限；有些系统的路径只允许 260 个字符。"
    ),
    "The starter model cannot be written to {folder} ({error}).": "入门模型无法写入 {folder}（{error}）。",
    "Make the folder writable, or set model.id to a model that is on disk.": (
        "请让该文件夹可写，或把 model.id 设为磁盘上已有的模型。"
    ),
    "The starter model is not on disk, and neither the Python package index nor the Hugging Face hub can be reached.": (
        "入门模型不在磁盘上，而 Python 软件包索引和 Hugging Face 都连接不上。"
    ),
    "Connect to the network, or set model.id to a model that is on disk. ({error})": (
        "请连接网络，或把 model.id 设为磁盘上已有的模型。（{error}）"
    ),
    "Connect to the network, or set model.id to a model that is on disk.": (
        "请连接网络，或把 model.id 设为磁盘上已有的模型。"
    ),
    "pip is not installed in this Python.": "这个 Python 里没有安装 pip。",
    "Install it: python -m ensurepip": "安装它：python -m ensurepip",
    "Update pip (python -m pip install --upgrade pip), or name a model that is on disk.": (
        "请更新 pip（python -m pip install --upgrade pip），或指明磁盘上已有的模型。"
    ),
    "The package index sent another file for {project} {version} than the one Octavo knows.": (
        "软件包索引发来的 {project} {version} 文件与 Octavo 认识的不同。"
    ),
    "Try again later, or set model.id to a model that is on disk.": "请稍后再试，或把 model.id 设为磁盘上已有的模型。",
    "The starter model in the wheel is not the one Octavo knows.": "软件包里的入门模型与 Octavo 认识的不同。",
    "The wheel of the starter model is damaged ({error}).": "入门模型的软件包已损坏（{error}）。",
    "Try again.": "请再试一次。",
    "OCTAVO_STARTER names {path}, which is not a file.": "OCTAVO_STARTER 指向 {path}，而它不是文件。",
    "Correct or unset it.": "请更正或取消它。",
    "That is not a token.": "这不是令牌。",
    "Copy a read token from your Hugging Face settings.": "请从您的 Hugging Face 设置里复制一个读取令牌。",
    "The environment variable {name} sets the token, and it would win over this one.": (
        "令牌由环境变量 {name} 设定，它会优先于这里输入的令牌。"
    ),
    "Change {name}, or unset it and start Octavo again.": "请修改 {name}，或取消它后重新启动 Octavo。",
    "The token cannot be written to {path} ({error}).": "令牌无法写入 {path}（{error}）。",
    "Make the folder writable, or set the environment variable HF_TOKEN.": (
        "请让该文件夹可写，或设置环境变量 HF_TOKEN。"
    ),
    "The token comes from the environment variable {name}.": "令牌来自环境变量 {name}。",
    "Unset it there.": "请在那里取消它。",
    "{path} cannot be deleted ({error}).": "{path} 无法删除（{error}）。",
    "Delete it yourself.": "请自行删除。",
    "The Hugging Face hub does not know this token.": "Hugging Face 不认识这个令牌。",
    "The hub sent {what} for {file} of {model}.": "Hugging Face 为 {model} 的 {file} 发来了{what}。",
    "What came of it was deleted; try again.": "收到的部分已删除，请再试一次。",
    "The hub does not say which content {file} of {model} has.": "Hugging Face 没有说明 {model} 的 {file} 应有的内容。",
    "Weights of the architecture {name} cannot be held as {format}.": "架构 {name} 的权重不能保存为 {format}。",
    # What the memory says
    "The weights of {model} need {size} on {device}; {free} are free.": (
        "{model} 的权重在 {device} 上需要 {size}，可用 {free}。"
    ),
    "The weights of {model} as {format} need {size} on {device}; {free} are free.": (
        "{model} 以 {format} 保存的权重在 {device} 上需要 {size}，可用 {free}。"
    ),
    "The weights of {model} need {size} on {device}; {free} are free, the loaded model's memory counted.": (
        "{model} 的权重在 {device} 上需要 {size}，算上现在的模型占用的内存，可用 {free}。"
    ),
    "The weights of {model} as {format} need {size} on {device}; {free} are free, the loaded model's memory counted.": (
        "{model} 以 {format} 保存的权重在 {device} 上需要 {size}，算上现在的模型占用的内存，可用 {free}。"
    ),
    "Choose a smaller model, or close programs that use the memory.": "请选择小一些的模型，或关闭占用内存的程序。",
    "With model.quantization: {format} they need about {size}.": "设 model.quantization: {format}，大约需要 {size}。",
}
