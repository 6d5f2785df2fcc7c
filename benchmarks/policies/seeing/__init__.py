"""A policy of three million parameters that reads the words on a screen and clicks them wherever they stand.

The model is an ordinary Qwen2.5-VL: all that is special is in its weights. `training.Schooling` trains it, in lessons:
`reading.ReadingLesson` for the vision tower, on screens of `captures` and `screens`, and `acting.ActingLesson` for the
language model. `beginnings.begin` gives it its first weights, and `layout` says what each part of the hidden states is
for.
"""
