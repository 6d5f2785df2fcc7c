"""A policy of three million parameters that reads the words on a screen and clicks them wherever they stand.

A start for RL on a machine without a GPU, for the tasks of `arpo_verl.tasks.families`. The model is an ordinary
Qwen2.5-VL: all that is special lies in its weights. `policy/seeing/shipped.py: write_shipped` writes the one that was
trained already; `policy/seeing/training.py: Schooling` trains another, in lessons: `policy/seeing/reading.py:
ReadingLesson` for the vision tower, on screens of `captures` and `screens`, and `policy/seeing/acting.py:
ActingLesson` for the language model. `policy/seeing/beginnings.py: begin` gives it its first weights, and `layout`
says what each part of the hidden states is for.
"""
