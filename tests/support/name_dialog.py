"""A task of the embedded desktop: to type a word into a dialog."""

from arpo_verl.types import Task

NAME_DIALOG = {
    "id": "name-dialog",
    "instruction": "Type arpo and press Enter.",
    "config": [
        {
            "type": "launch",
            "parameters": {"command": "zenity --entry --title=Name > ~/name.txt", "shell": True},
        },
        {
            "type": "execute_with_verification",
            "parameters": {
                "command": ["true"],
                "verification": {
                    "command_success": "python -c 'from arpo_guest.drawn import require; require(\"Name\", 0)'"
                },
                "max_wait_time": 60,
                "check_interval": 0.1,
            },
        },
    ],
    "evaluator": {
        "func": "exact_match",
        "result": {
            "type": "vm_command_line",
            # The dialog writes when it ends, which takes a while on a busy machine.
            "command": "for i in $(seq 50); do [ -s ~/name.txt ] && break; sleep 0.1; done; cat ~/name.txt",
            "shell": True,
        },
        "expected": {"type": "rule", "rules": {"expected": "arpo\n"}},
    },
}
TASK = Task("name-dialog", NAME_DIALOG["instruction"], NAME_DIALOG)
