"""Text in and out: tokenizer, chat template, detokenizer, stop strings, reasoning split."""
