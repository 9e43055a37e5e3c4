"""Kernels on KerasTensors: a call in a functional model becomes an operation of that model, saved with it as texts."""

import keras


@keras.saving.register_keras_serializable("tfuse")
class JitOperation(keras.Operation):
    def __init__(self, recipe, name=None):
        super().__init__(name=name)
        self.recipe = recipe
        kind, arguments = recipe["kind"], {k: v for k, v in recipe.items() if k != "kind"}
        from tfuse import jit
        self.function = getattr(jit, kind)(**arguments)

    def call(self, *inputs):
        return self.function(*inputs)

    def get_config(self):
        if callable(self.recipe["grad"]):
            raise ValueError("%s: a model with it cannot be saved, as grad is a Python function; text can be" % (
                self.recipe["name"]))
        return {**super().get_config(), "recipe": self.recipe}
