"""A recipe as one readable Python file, to be taken into a repository that does not have this package.

    print(sandbox.source("apollo"))                                  the file
    sandbox.optimizer.source_state.to_file("apollo", state_dict)     a checkpoint of `sandbox.Optimizer` for the file's class
    sandbox.optimizer.source_state.from_file("apollo", state_dict)   and the way back

What is written is what ran: `recording` notes the calls of one step, `expressions` writes them, `step` names them, `file` puts
the class around them.
"""

from sandbox.forms.source.file import source

__all__ = ["source"]
