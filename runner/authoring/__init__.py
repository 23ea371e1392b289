"""What the author of an agent imports."""

from runner.authoring.ask import Approval, confirm_action, provide_input, select_option

__all__ = ["Approval", "confirm_action", "provide_input", "select_option"]
