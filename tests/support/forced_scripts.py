"""What `forced_replies.py` has the policy write for two shipped tasks, "Answer Yes" and "Answer No".

In the first step the first task is solved, and in every other episode nothing is done.
"""

YES = "Answer Yes to the question."


def _presses(step, prompt, screenshots):
    """Whether it is time to press the button, which is at (510, 295) of a screen of 640x480."""
    return step == 1 and YES in prompt and screenshots == 1


def uitars15(step, prompt, screenshots):
    """For OSWorld's UI-TARS-1.5 agent, whose positions are in a screenshot of 644x476."""
    if _presses(step, prompt, screenshots):
        return "Thought: I press Yes.\nAction: click(start_box='(513,293)')"
    return "Thought: Done.\nAction: finished(content='done')"


def qwen3vl(step, prompt, screenshots):
    """For OSWorld's Qwen3-VL agent, whose positions are in thousandths."""
    pressing = '{"action": "left_click", "coordinate": [796, 614]}'
    arguments = pressing if _presses(step, prompt, screenshots) else '{"action": "terminate", "status": "success"}'
    return f'Action: Go on.\n<tool_call>\n{{"name": "computer_use", "arguments": {arguments}}}\n</tool_call>'


def small(step, prompt, screenshots):
    """For our loop as a harness, with the family `small`, whose positions are in a screenshot of 364x252."""
    if _presses(step, prompt, screenshots):
        return "Thought: Press Yes.\nAction: click(start_box='(290,155)')"
    return "Thought: Done.\nAction: finished()"


def nothing(step, prompt, screenshots):
    """As `small` from its second step on."""
    return small(0, prompt, screenshots)
