from regard.training.files import *
