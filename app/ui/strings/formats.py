"""The formats that weights can be loaded in, explained where one is chosen."""

EN: dict[str, str] = {
    "format.all": "What these formats mean",
    "format.size": "{size}, {share} % of 16 bit",
    "format.sentences": "{first} {second}",
    "format.quicker": "Quicker on this machine than 16 bit while one or a few chats are written; not so with many.",
    "format.slower": "Slower on this machine than 16 bit: only to save memory.",
    "format.about.none": "As the model's makers stored them. What a file stores in fewer bits is widened to 16 where "
    "that is quicker.",
    "format.about.packed": "As the file stores them, in fewer bits than 16. Nothing more is lost.",
    "format.about.int8": "Whole numbers of 8 bits. Replies hardly change.",
    "format.about.int8-dynamic": "Like int8, and what flows through the model is rounded to 8 bits too. A little less "
    "exact.",
    "format.about.llm-int8": "Like int8-dynamic, but the loudest values are left as they are. About as exact as int8.",
    "format.about.fp8": "Floating-point numbers of 8 bits, meant for newer GPUs. A little less exact than int8.",
    "format.about.int4": "Whole numbers of 4 bits, scaled in small groups. The most exact in 4 bits: large models "
    "suffer little, small ones more.",
    "format.about.int4-symmetric": "Like int4 with simpler scales: a little smaller and less exact.",
    "format.about.nf4": "4 bits, finest where most weights lie. About as exact as int4-symmetric.",
    "format.about.fp4": "Floating-point numbers of 4 bits. The least exact of all.",
}

ZH_CN: dict[str, str] = {
    "format.all": "这些格式是什么意思",
    "format.size": "{size}，是 16 位的 {share} %",
    "format.sentences": "{first}{second}",
    "format.quicker": "同时只有一两个对话在生成时，在这台电脑上比 16 位快；对话多时不会更快。",
    "format.slower": "在这台电脑上比 16 位慢：只为省内存时才选。",
    "format.about.none": "作者存的是什么就用什么。文件里不足 16 位的权重，展开成 16 位更快时会展开。",
    "format.about.packed": "按文件里的样子使用，不到 16 位，不再损失精度。",
    "format.about.int8": "8 位整数。回复几乎没有变化。",
    "format.about.int8-dynamic": "和 int8 一样，另外把流经模型的数值也舍入到 8 位，精度略低一些。",
    "format.about.llm-int8": "和 int8-dynamic 类似，但特别大的数值保持原样。精度与 int8 差不多。",
    "format.about.fp8": "8 位浮点数，面向较新的显卡。精度比 int8 略低。",
    "format.about.int4": "4 位整数，按小组缩放。4 位里精度最高：大模型影响不大，小模型影响较明显。",
    "format.about.int4-symmetric": "和 int4 类似，缩放更简单：再小一点，精度也低一些。",
    "format.about.nf4": "4 位，在权重最集中的地方分得最细。精度与 int4-symmetric 差不多。",
    "format.about.fp4": "4 位浮点数。所有格式里精度最低。",
}
