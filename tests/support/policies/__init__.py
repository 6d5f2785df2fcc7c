"""The small Qwen2.5-VL that tests play and train, with its tokenizer and random weights; and an expert's episodes."""
