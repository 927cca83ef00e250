"""What the engine says of models and requests, in Chinese (see `sentences_app`)."""

ZH_CN: dict[str, str] = {
    # How a model runs
    "Running on the CPU: {reason}.": "正在用 CPU 运行：{reason}。",
    "no NVIDIA driver was found": "没有找到 NVIDIA 驱动",
    "there is an NVIDIA driver, but the installed torch {version} is built without CUDA": (
        "有 NVIDIA 驱动，但安装的 torch {version} 不带 CUDA"
    ),
    "the NVIDIA driver offers no GPU that torch {version} (CUDA {cuda}) can use": (
        "NVIDIA 驱动没有提供 torch {version}（CUDA {cuda}）能用的显卡"
    ),
    "Operator fusion is off: every operation runs by itself in plain torch, which is slower.": (
        "算子融合已关闭：每个运算都单独由 torch 执行，速度较慢。"
    ),
    "On the CPU an 8-bit cache saves memory but costs speed: plain torch reads it, not the compiled kernels.": (
        "在 CPU 上，8 位缓存节省内存但会变慢：由普通 torch 读取，而不是编译好的内核。"
    ),
    "Paged attention is off: chats share nothing, and each holds a slot of its whole context.": (
        "分页注意力已关闭：对话之间不共享内容，每个都占用整个上下文的位置。"
    ),
    "context_length {asked} was cut to the model's own {own}.": "context_length {asked} 已减到模型自身的 {own}。",
    "The context was cut from {wanted} to {fits} tokens: {size} GiB hold no more.": (
        "上下文已从 {wanted} 减到 {fits} 个词元：{size} GiB 只能容纳这么多。"
    ),
    "This is a multimodal checkpoint: its text part runs, images and sound are left out.": (
        "这是多模态模型：只运行文字部分，不处理图片和声音。"
    ),
    "{name} runs through transformers' own layers with Octavo's attention: right, but slower than the architectures "
    "Octavo has a decoder for.": (
        "{name} 用 transformers 自己的层和 Octavo 的注意力运行：结果正确，但比 Octavo 有解码器的架构慢。"
    ),
    "The weights stay packed ({kinds}): as {dtype} they would take {needed} GiB of the {free} GiB that are free. "
    "This is slower.": (
        "权重保持压缩（{kinds}）：展开为 {dtype} 需要 {needed} GiB，而可用的只有 {free} GiB。这样会慢一些。"
    ),
    "Only copies are guessed ahead: {reason}": "只预测重复的文字：{reason}",
    "Tokens are computed one at a time: {reason}": "词元逐个计算：{reason}",
    "speculation.mode is self, but {name} runs through its transformers class, which cannot be left after its first "
    "layers.": "speculation.mode 是 self，但 {name} 由 transformers 的类运行，不能在前几层之后离开。",
    "Choose another speculation.mode.": "请选择别的 speculation.mode。",
    "speculation.mode is draft, but no draft model is named.": "speculation.mode 是 draft，但没有指明草稿模型。",
    "Set speculation.draft_model, or another mode.": "请设置 speculation.draft_model，或选择别的模式。",
    "The draft model {name} keeps windows of its layers apart.": "草稿模型 {name} 的各层窗口不同。",
    "Choose a draft model whose layers all see the whole text.": "请选择每层都能看到全文的草稿模型。",
    "The draft model has another vocabulary: token {id} is {theirs} there and {mine} in the model.": (
        "草稿模型的词表不同：词元 {id} 在那里是 {theirs}，在模型里是 {mine}。"
    ),
    "Choose a draft model of the same family, or another speculation.mode.": (
        "请选择同一系列的草稿模型，或别的 speculation.mode。"
    ),
    "This model's chat template is not usable ({error}); {instead}.": (
        "这个模型的对话模板不能用（{error}）；{instead}。"
    ),
    "This model has no chat template; {instead}.": "这个模型没有对话模板；{instead}。",
    "the ChatML form is used": "改用 ChatML 格式",
    "plain lines beginning with User: and Assistant: are used": "改用以 User: 和 Assistant: 开头的普通行",
    "This model's chat template has no place for the system text; it was put before the first user message.": (
        "这个模型的对话模板没有系统文本的位置，因此放在了第一条用户消息之前。"
    ),
    "This model's chat template wants strict turns; consecutive messages of one role were merged.": (
        "这个模型的对话模板要求双方轮流，因此合并了同一角色的连续消息。"
    ),
    "This model's chat template takes a system text only at the start; later ones were said as the user.": (
        "这个模型的对话模板只接受开头的系统文本，之后的改由用户说出。"
    ),
    "This model's chat template takes no tools; they were left out.": "这个模型的对话模板不接受工具，因此略去了。",
    "This model's chat template refuses messages[{index}] ({role}): {reason}.": (
        "这个模型的对话模板拒绝 messages[{index}]（{role}）：{reason}。"
    ),
    "Change that message or leave it out.": "请修改或去掉这条消息。",
    "Put one before it.": "请在它之前加上一条。",
    "messages[{index}] ({role}) cannot be continued.": "messages[{index}]（{role}）不能继续写。",
    "Only a last message of the assistant can.": "只有助手的最后一条消息可以。",
    "This model's chat template cannot continue messages[0] (assistant): no user message comes before it.": (
        "这个模型的对话模板不能继续 messages[0]（assistant）：它之前没有用户消息。"
    ),
    # Requests
    "This model has no tokenizer; only token ids can be sent to it.": "这个模型没有分词器，只能向它发送词元编号。",
    "Send ids, or load a model that has one.": "请发送编号，或加载带有分词器的模型。",
    "A request with the id {id} is running already.": "编号为 {id} 的请求已在运行。",
    "Wait for its end, or send another id.": "请等它结束，或换一个编号。",
    "The prompt is empty.": "提示是空的。",
    "Send at least one token.": "请至少发送一个词元。",
    "Token id {id} is outside the vocabulary of {size}.": "词元编号 {id} 超出了词表的大小 {size}。",
    "Send ids of this model's own tokenizer: other models have other ones.": (
        "请发送这个模型自己的分词器的编号：不同模型的编号不同。"
    ),
    "max_tokens must be at least 1.": "max_tokens 至少为 1。",
    "Leave it out to go on to the context's end.": "不填则一直写到上下文结束。",
    "Load a model first.": "请先加载模型。",
    "The engine has failed.": "引擎出错了。",
    "Load the model again; the log has the cause.": "请重新加载模型；原因见日志。",
    "The engine was closed.": "引擎已关闭。",
    "The prompt has {tokens} tokens; this model's context holds {limit}, one of them for the reply.": (
        "提示有 {tokens} 个词元，而这个模型的上下文只有 {limit}，其中一个留给回复。"
    ),
    "Shorten the prompt or load the model with a larger context_length.": (
        "请缩短提示，或用更大的 context_length 加载模型。"
    ),
    "{n} requests are waiting already.": "已有 {n} 个请求在等待。",
    "{field} must be {allowed}, not {value}.": "{field} 应为{allowed}，不能是 {value}。",
    "{field} names token {id}; this model's ids are 0 to {last}.": (
        "{field} 里有词元 {id}；这个模型的编号是 0 到 {last}。"
    ),
    "There is no sampling field {name}.": "没有采样项 {name}。",
    "Did you mean {name}?": "是不是想写 {name}？",
    "Known are: {names}.": "可用的有：{names}。",
    "A default of the model is ignored: {reason}": "忽略了模型的一个默认值：{reason}",
    "There is no scheduler named {name}.": "没有名为 {name} 的调度方式。",
    "Choose one of {names}.": "请从 {names} 中选择。",
    # Device and memory
    "{size} GiB for keys and values hold a chat of {tokens} tokens.": (
        "{size} GiB 的键值缓存只能容纳 {tokens} 个词元的对话。"
    ),
    "Raise engine.kv_memory, choose a smaller model, or free memory on the device.": (
        "请调大 engine.kv_memory、选择小一些的模型，或在设备上腾出内存。"
    ),
    "engine.kv_memory is {size} GiB; {free} are free on {device}.": (
        "engine.kv_memory 是 {size} GiB，而 {device} 上可用的是 {free}。"
    ),
    "Lower engine.kv_memory or set it to auto.": "请调小 engine.kv_memory，或设为 auto。",
    "There is no CUDA device {index}; {count} were found.": "没有 CUDA 设备 {index}；共找到 {count} 个。",
    "Set model.device to cuda:0 or auto.": "请把 model.device 设为 cuda:0 或 auto。",
    "{device} was asked for, but {reason}.": "要求使用 {device}，但是{reason}。",
    "Set model.device to cpu or auto.": "请把 model.device 设为 cpu 或 auto。",
    "Cache planes {planes} are not supported; only k and v are.": "不支持缓存 {planes}，只支持 k 和 v。",
    "The weight format {name} does not exist here.": "没有权重格式 {name}。",
    "Use one of: {names}.": "请使用：{names}。",
    "There is no shape {name}.": "没有形状 {name}。",
    "Known shapes: {names}.": "可用的形状：{names}。",
    "The text has fewer than two tokens, so there is nothing to predict.": "文本不足两个词元，没有可以预测的内容。",
    "Give a longer text.": "请给出更长的文本。",
    "A shape has no tokenizer, so no other model can guess for it.": "形状没有分词器，别的模型无法为它预测。",
    # Files of a model
    "Check that the file is there and that you may read it.": "请确认文件存在，并且您有读取权限。",
    "There is no model at {path}.": "{path} 处没有模型。",
    "{file} alone is not a model: its config.json lies beside it.": "只有 {file} 还不是模型：config.json 在它旁边。",
    "Name the folder instead: {folder}": "请改为指明文件夹：{folder}",
    "{folder} holds {n} GGUF models ({names}).": "{folder} 里有 {n} 个 GGUF 模型（{names}）。",
    "Name the .gguf file that you want.": "请指明要用的 .gguf 文件。",
    "{file} has no tensor named {name}.": "{file} 里没有名为 {name} 的张量。",
    "The file is incomplete or belongs to another model; fetch it again.": "文件不完整，或属于别的模型；请重新获取。",
    "{file} is encoded as UTF-16.": "{file} 的编码是 UTF-16。",
    "Save it as UTF-8.": "请保存为 UTF-8。",
    "{file} is not UTF-8 (byte {n}).": "{file} 不是 UTF-8（第 {n} 字节）。",
    "{file} is not valid JSON ({error}).": "{file} 不是有效的 JSON（{error}）。",
    "{file} holds no JSON object.": "{file} 里没有 JSON 对象。",
    "{file} is a Git LFS pointer, not the file itself.": "{file} 只是 Git LFS 指针，不是文件本身。",
    "Run `git lfs pull` in its folder, or fetch the model again.": (
        "请在它的文件夹里运行 `git lfs pull`，或重新获取模型。"
    ),
    "{file} ended while {tensor} was read.": "读取 {tensor} 时 {file} 已到结尾。",
    "The file was changed or its drive went away; load the model again.": (
        "文件被改动过，或磁盘已断开；请重新加载模型。"
    ),
    "{folder} has no tokenizer (neither tokenizer.json nor tokenizer.model).": (
        "{folder} 没有分词器（既没有 tokenizer.json，也没有 tokenizer.model）。"
    ),
    "Fetch the whole repository of the model, not only its weights.": "请获取模型的整个仓库，不要只取权重。",
    "The tokenizer of {folder} needs code from its folder, which is never run.": (
        "{folder} 的分词器需要运行它文件夹里的代码，而 Octavo 从不运行这些代码。"
    ),
    "Use a version of the model that transformers knows itself.": "请使用 transformers 本身认识的版本。",
    "The tokenizer of {folder} cannot be read ({error}).": "{folder} 的分词器无法读取（{error}）。",
    "Fetch its tokenizer files again.": "请重新获取分词器文件。",
    "The config.json of {folder} is not one that transformers accepts ({error}).": (
        "transformers 不接受 {folder} 的 config.json（{error}）。"
    ),
    "Correct it, or fetch it again.": "请更正，或重新获取。",
    "{file} stores {tensor} as {type}, which is not supported.": "{file} 以 {type} 保存 {tensor}，不受支持。",
    "Fetch a file of one of the types {types}.": "请获取以下类型之一的文件：{types}。",
    "{file} is not a GGUF file: it begins with {bytes}.": "{file} 不是 GGUF 文件：它以 {bytes} 开头。",
    "Choose a model file in GGUF format.": "请选择 GGUF 格式的模型文件。",
    "{file} is GGUF {version}; read are the little-endian versions 2 and 3.": (
        "{file} 是 GGUF {version}；能读取的是小端的第 2 和第 3 版。"
    ),
    "Fetch a newer conversion of this model.": "请获取这个模型较新的转换版本。",
    "{file} has the architecture {name}, which is not supported as a GGUF file.": (
        "{file} 的架构是 {name}，不支持以 GGUF 文件运行。"
    ),
    "Supported are {names}; other models run from a folder with safetensors.": (
        "支持的有 {names}；别的模型可以从带有 safetensors 的文件夹运行。"
    ),
    "{file}: the tensor {name} {what}.": "{file}：张量 {name} 有误（{what}）。",
    "Fetch another conversion of this model.": "请获取这个模型的另一个转换版本。",
    "{file} is one of {count} parts of a model, and its name does not say which.": (
        "{file} 是模型 {count} 个分卷之一，但名称没有说明是第几个。"
    ),
    "Give the parts their names again: NAME-00001-of-{count}.gguf and so on.": (
        "请恢复分卷的名称：NAME-00001-of-{count}.gguf 等。"
    ),
    "{file} is one of {count} parts; missing: {files}.": "{file} 是 {count} 个分卷之一，缺少：{files}。",
    "Fetch what is missing into {folder}.": "请把缺少的获取到 {folder}。",
    "{file} says it is part {n} of {count}, expected {index} of {all}.": (
        "{file} 自称是 {count} 个分卷中的第 {n} 个，应为 {all} 个中的第 {index} 个。"
    ),
    "The parts belong to different models; fetch them again.": "这些分卷属于不同的模型，请重新获取。",
    "The {count} parts of {file} hold {found} tensors, expected {total}.": (
        "{file} 的 {count} 个分卷共有 {found} 个张量，应为 {total} 个。"
    ),
    "A part is of another model; fetch the parts again.": "有一个分卷属于别的模型，请重新获取各分卷。",
    "The file's tokenizer is of the kind {kind}; read are 'gpt2' and 'llama'.": (
        "文件的分词器类型是 {kind}；能读取的是 'gpt2' 和 'llama'。"
    ),
    "Use the model's folder with safetensors instead.": "请改用模型带有 safetensors 的文件夹。",
    "The file's tokenizer cuts words by the rule {name}, which is not known.": "文件的分词器按未知的规则 {name} 切分。",
    "Known are {names}; use the model's folder with safetensors instead.": (
        "认识的有 {names}；请改用模型带有 safetensors 的文件夹。"
    ),
    "{n} of the {count} weight files are missing in {folder}: {files}.": (
        "{folder} 里 {count} 个权重文件缺少 {n} 个：{files}。"
    ),
    "Fetch them again.": "请重新获取。",
    "{folder} holds an adapter, not a whole model.": "{folder} 里是适配器，不是完整的模型。",
    "Merge the adapter into its base model and name that folder.": "请把适配器合并到基础模型里，再指明那个文件夹。",
    "{folder} holds {files} and no {index} that says which of them are the model.": (
        "{folder} 里有 {files}，但没有说明哪些属于模型的 {index}。"
    ),
    "Fetch the index file too.": "请把索引文件也获取下来。",
    "{folder} holds its weights only as Python pickles, which can run any code and are never opened.": (
        "{folder} 的权重只有 Python 的 pickle 格式，它可以运行任何代码，因此从不打开。"
    ),
    "Use the model's safetensors files, or convert it with transformers' save_pretrained.": (
        "请使用模型的 safetensors 文件，或用 transformers 的 save_pretrained 转换。"
    ),
    "{folder} holds no model weights.": "{folder} 里没有模型权重。",
    "{file} has no weight_map.": "{file} 没有 weight_map。",
    "{index} places {tensor} in {file}, which is not a safetensors file of its folder.": (
        "{index} 说 {tensor} 在 {file} 里，而它不是该文件夹里的 safetensors 文件。"
    ),
    "{index} places {tensor} in {file}, which does not hold it.": "{index} 说 {tensor} 在 {file} 里，而那里没有。",
    "The index and the weight files are of different versions; fetch the model again.": (
        "索引与权重文件的版本不同，请重新获取模型。"
    ),
    "The tensor {name} is in {file} and again in {other}.": "张量 {name} 在 {file} 里，又在 {other} 里。",
    "Remove the files that belong to another model or version.": "请移除属于别的模型或版本的文件。",
    "Use a version of the model in bfloat16, float16 or float32.": "请使用 bfloat16、float16 或 float32 的版本。",
    "{folder} has no config.json, so its architecture is unknown.": "{folder} 没有 config.json，因此不知道它的架构。",
    # Quantized files
    "{file} holds AWQ weights of {bits} bits in the layout {layout}, which is not read.": (
        "{file} 是布局为 {layout} 的 {bits} 位 AWQ 权重，不能读取。"
    ),
    "Use a version of the model in the layout gemm, as compressed-tensors, or as a GGUF file.": (
        "请使用 gemm 布局、compressed-tensors 或 GGUF 的版本。"
    ),
    "{file} stores {module} in a table of its own.": "{file} 用自己的码表保存 {module}。",
    "Use a version of the model as nf4 or fp4, or a GGUF file.": "请使用 nf4 或 fp4 的版本，或 GGUF 文件。",
    "The quantization settings of {file} do not fit its weights ({error}).": (
        "{file} 的量化设置与权重不符（{error}）。"
    ),
    "{file} holds {name} quantized and again in full.": "{file} 里的 {name} 既有量化的，又有完整的。",
    "{name} in {file} is no {kind} weight ({error}).": "{file} 里的 {name} 不是 {kind} 权重（{error}）。",
    "{file} stores its weights as {form} of compressed-tensors, which is not read.": (
        "{file} 以 compressed-tensors 的 {form} 保存权重，不能读取。"
    ),
    "Use a version of the model in one of {forms}, or a GGUF file.": "请使用 {forms} 之一的版本，或 GGUF 文件。",
    "{file} leaves out the zeros of its weights (a sparse form of compressed-tensors).": (
        "{file} 省去了权重中的零（compressed-tensors 的稀疏格式）。"
    ),
    "Use a dense version of the model.": "请使用稠密的版本。",
    "The weights of {folder} are quantized for ExLlama ({method}), whose codes only it can read.": (
        "{folder} 的权重是为 ExLlama 量化的（{method}），只有它能读取。"
    ),
    "The weights of {folder} are quantized by {method}, which is not read.": (
        "{folder} 的权重由 {method} 量化，不能读取。"
    ),
    "{file} stores its weights as {form} numbers; of 8-bit floats, e4m3 are read.": (
        "{file} 以 {form} 保存权重；8 位浮点数中能读取的是 e4m3。"
    ),
    "Use another version of the model, or a GGUF file.": "请使用别的版本，或 GGUF 文件。",
    "{file} holds GPTQ weights of {bits} bits; 2, 3, 4 and 8 are read.": (
        "{file} 是 {bits} 位的 GPTQ 权重；能读取的是 2、3、4 和 8 位。"
    ),
    "Use a version of the model with one of these, or a GGUF file.": "请使用这些位数的版本，或 GGUF 文件。",
    "{file} holds weights that ModelOpt quantized as {method}, which is not read.": (
        "{file} 的权重由 ModelOpt 量化为 {method}，不能读取。"
    ),
    "Use a version of the model as NVFP4, FP8 or a GGUF file.": "请使用 NVFP4、FP8 的版本，或 GGUF 文件。",
    "In {file}, {what}.": "{file} 有误：{what}。",
    "The file is damaged or its config.json belongs to another version; fetch the model again.": (
        "文件已损坏，或 config.json 属于别的版本；请重新获取模型。"
    ),
    "{file} holds {module} as {kind} of torchao, which is not read.": (
        "{file} 以 torchao 的 {kind} 保存 {module}，不能读取。"
    ),
    "Use a version of the model as {forms}, or a GGUF file.": "请使用 {forms} 的版本，或 GGUF 文件。",
    # What a config asks for
    "Choose another model, or see whether a newer Octavo runs this one.": (
        "请选择别的模型，或看看更新版本的 Octavo 能否运行它。"
    ),
    "Fetch the model's own config.json again (of a GGUF file, the whole file), or choose another model.": (
        "请重新获取这个模型自己的 config.json（GGUF 则重新获取整个文件），或选择别的模型。"
    ),
    "Add max_position_embeddings to its config.json: the number of tokens that the model was made for.": (
        "请在它的 config.json 里加上 max_position_embeddings：这个模型所支持的词元数。"
    ),
    "The config of {name} does not say how long its context is.": "{name} 的配置没有说明上下文有多长。",
    "The configuration of {name} does not say how long its context is.": "{name} 的配置没有说明上下文有多长。",
    "The config names no model_type.": "配置里没有 model_type。",
    "Octavo's own decoder runs {names}.": "Octavo 自己的解码器能运行 {names}。",
    "The tensor {name} is in none of the checkpoint's files ({what}).": "模型的文件里都没有张量 {name}（{what}）。",
    "The tensor {name}{more} is in none of the checkpoint's files ({what}).": (
        "模型的文件里都没有张量 {name}{more}（{what}）。"
    ),
    "The checkpoint is incomplete or its config.json belongs to another model; fetch it again.": (
        "模型不完整，或 config.json 属于别的模型；请重新获取。"
    ),
    "The tensor {name} in {file} does not fit: {what}.": "{file} 里的张量 {name} 不符：{what}。",
    "it is stored as {type}, in whole numbers without a scale": "以 {type} 保存，是没有缩放系数的整数",
    "it holds what {name} holds already": "它的内容 {name} 里已经有了",
    "the config says that the model has no such weight": "按照配置，模型没有这个权重",
    "the config says that the model has no such expert": "按照配置，模型没有这个专家",
    "its shape is {shape} where the config means {expected}": "它的形状是 {shape}，而配置要求 {expected}",
    "no {family} model has such a tensor": "{family} 模型都没有这样的张量",
    "The file and its config.json do not belong together, or the model is of a kind not supported here: fetch it "
    "again, or choose another.": "文件与它的 config.json 不是一起的，或不支持这种模型：请重新获取，或选择别的模型。",
    "The architecture {name} attends in a way that Octavo's attention does not reproduce (relative error {error} on a "
    "few tokens).": "架构 {name} 的注意力方式 Octavo 无法重现（几个词元上的相对误差为 {error}）。",
    "transformers does not accept the configuration: {error}.": "transformers 不接受这个配置：{error}。",
    "transformers cannot make a {name} of this configuration: {error}.": (
        "transformers 无法用这个配置构造 {name}：{error}。"
    ),
    "The architecture {name} is not supported. {why}": "不支持架构 {name}。{why}",
    "The architecture {name} is not supported.": "不支持架构 {name}。",
    "The architecture {name} needs transformers {wanted} or newer; {found} is installed.": (
        "架构 {name} 需要 transformers {wanted} 或更新版本；现在安装的是 {found}。"
    ),
    "The architecture {name} comes with code of its own, which Octavo never runs.": (
        "架构 {name} 自带代码，而 Octavo 从不运行这些代码。"
    ),
    "The installed transformers {version} does not know the architecture {name}.": (
        "安装的 transformers {version} 不认识架构 {name}。"
    ),
    "The architecture {name} has an encoder; Octavo runs decoder-only models.": (
        "架构 {name} 带有编码器；Octavo 只运行纯解码器模型。"
    ),
    "transformers has no causal language model of the architecture {name}.": (
        "transformers 没有架构 {name} 的因果语言模型。"
    ),
    "The checkpoint is a {found}; of this architecture Octavo runs {name}.": (
        "这个模型是 {found}；这种架构中 Octavo 能运行的是 {name}。"
    ),
    "The checkpoint is quantized by {method}, which is not supported for the architecture {name}.": (
        "模型由 {method} 量化，架构 {name} 不支持这种方式。"
    ),
    "The architecture {name} keeps a recurrent state, which cannot be kept in pages.": (
        "架构 {name} 带有循环状态，不能放在分页里。"
    ),
    "The architecture {name} biases attention by distance (ALiBi), which is not supported.": (
        "架构 {name} 按距离给注意力加偏置（ALiBi），不受支持。"
    ),
    "The architecture {name} does not let another program compute its attention in transformers.": (
        "在 transformers 里，架构 {name} 不允许由别的程序计算注意力。"
    ),
    "The architecture {name} has layers of the kind {kind}, which cannot be kept in pages.": (
        "架构 {name} 有 {kind} 类型的层，不能放在分页里。"
    ),
    "The architecture {name} cannot be run over a paged cache: {reason}.": "架构 {name} 不能用分页缓存运行：{reason}。",
    "Layer {n} of the architecture {name} has no such attention.": "架构 {name} 的第 {n} 层没有这样的注意力。",
    "Layer {n} of the architecture {name} does not tell its window to the attention.": (
        "架构 {name} 的第 {n} 层没有把窗口告诉注意力。"
    ),
    "{name} changes its rotary frequencies with the length of a batch.": "{name} 会随批次长度改变旋转频率。",
    "{name} runs all its layers at once.": "{name} 一次运行所有的层。",
    "Its attention reads other keys than it stored in the cache.": "它的注意力读取的键与存入缓存的不同。",
    "{name} reads other values than it stored in the cache.": "{name} 读取的值与存入缓存的不同。",
    "{name} makes an attention mask of its own.": "{name} 使用自己的注意力掩码。",
    "{name} attends to later tokens.": "{name} 会看到后面的词元。",
    "{name} asks its attention for {what}.": "{name} 要求注意力提供 {what}。",
    "Layer {n} caches more than one set of keys and values.": "第 {n} 层缓存了不止一组键值。",
    "The tensors for {name} do not fit together: one is missing or has another shape.": (
        "{name} 的各个张量不相配：缺少一个，或形状不同。"
    ),
    "The tensors for {name} make the shape {shape}, but its configuration says {expected}.": (
        "{name} 的张量合起来的形状是 {shape}，而配置要求 {expected}。"
    ),
    "{name} has no place for the tensor {tensor} of {file}.": "{name} 没有放置 {file} 的张量 {tensor} 的位置。",
    "The tensor {tensor} of {file} is stored as {type}, in whole numbers without a scale.": (
        "{file} 的张量 {tensor} 以 {type} 保存，是没有缩放系数的整数。"
    ),
    "The tensor {tensor} of {file} has the shape {shape}, but its configuration says {expected}.": (
        "{file} 的张量 {tensor} 的形状是 {shape}，而配置要求 {expected}。"
    ),
    "The config's rope_type {name} has a {what}.": "配置的 rope_type {name} 有误（{what}）。",
    "{key} of {value}; more than 1 is needed": "{key} 是 {value}，应大于 1",
    "{key} of {value}; at least 1 is needed": "{key} 是 {value}，至少应为 1",
    "{key} of {value}; more than the low_freq_factor is needed": "{key} 是 {value}，应大于 low_freq_factor",
    "The config's {key} of rope_type {name} is {value}; a number above zero is needed.": (
        "配置中 rope_type {name} 的 {key} 是 {value}；应为大于零的数。"
    ),
    "The config's rope_type {name} needs {key}, which is not there.": (
        "配置的 rope_type {name} 需要 {key}，而里面没有。"
    ),
    "The config's {key} is not a list of numbers above zero.": "配置的 {key} 不是大于零的数的列表。",
    "The config's {key} has {n} numbers; {needed} are needed.": "配置的 {key} 有 {n} 个数；应有 {needed} 个。",
    "The config asks for rotary embeddings of rope_type {name}; supported are {names}.": (
        "配置要求 rope_type 为 {name} 的旋转位置编码；支持的有 {names}。"
    ),
    "The config rotates {n} of {size} channels of a head; an even number is needed.": (
        "配置旋转每个头 {size} 个通道中的 {n} 个；应为偶数。"
    ),
    "rope_type 'dynamic' needs more than {n} rotated channels.": "rope_type 'dynamic' 需要旋转超过 {n} 个通道。",
    "The checkpoint's model_type is {name}; supported are {names}, also as the text part of a multimodal model.": (
        "模型的 model_type 是 {name}；支持的有 {names}，也可以是多模态模型的文字部分。"
    ),
    "The config's {key} is {value}; a positive whole number is needed.": "配置的 {key} 是 {value}；应为正整数。",
    "The config's {key} is larger than {most}, which no model has.": "配置的 {key} 大于 {most}，没有模型会这样。",
    "The config's {key} is {value}; a number above zero is needed.": "配置的 {key} 是 {value}；应为大于零的数。",
    "The config's {key} is {value}; a list is needed.": "配置的 {key} 是 {value}；应为列表。",
    "The config has {heads} query heads for {kv} key-value heads; a whole multiple is needed.": (
        "配置有 {heads} 个查询头和 {kv} 个键值头；应为整数倍。"
    ),
    "The config asks for bidirectional attention; only causal models can chat.": (
        "配置要求双向注意力；只有因果模型才能对话。"
    ),
    "The config's {key} is {value}; supported are {names}.": "配置的 {key} 是 {value}；支持的有 {names}。",
    "The config routes each token to {n} of only {count} experts.": (
        "配置把每个词元交给 {n} 个专家，而专家只有 {count} 个。"
    ),
    "The config claims {n} layers; at most {most} are read.": "配置声称有 {n} 层；最多读取 {most} 层。",
    "The config's layer_types name {name}; supported are full_attention and sliding_attention.": (
        "配置的 layer_types 里有 {name}；支持的是 full_attention 和 sliding_attention。"
    ),
    "The config's layer_types have {n} entries for {layers} layers.": (
        "配置的 layer_types 有 {n} 项，而层数是 {layers}。"
    ),
    "The config's max_window_layers is {value}; a whole number is needed.": (
        "配置的 max_window_layers 是 {value}；应为整数。"
    ),
    "The config's no_rope_layers have {n} entries for {layers} layers.": (
        "配置的 no_rope_layers 有 {n} 项，而层数是 {layers}。"
    ),
    "The config's rope_parameters or rope_scaling is not a table of values.": (
        "配置的 rope_parameters 或 rope_scaling 不是数值表。"
    ),
    "The tokenizer class {name} has no tokenizer.json form.": "分词器类 {name} 没有 tokenizer.json 的形式。",
    "Use a checkpoint that carries a tokenizer.json file.": "请使用带有 tokenizer.json 文件的模型。",
    "The mixture {name} needs rows of whole blocks; those of {base} have {count} columns.": (
        "混合格式 {name} 需要由整块组成的行；{base} 的行有 {count} 列。"
    ),
    "Measure another shape.": "请测量另一种形状。",
}
